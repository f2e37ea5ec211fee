// What is kept of idempotency ids, so that a retry after an unknown commit finds its answer.
import { h, replace, table } from "../dom.js";
import { count, duration, size } from "../format.js";

export default async function ids({ get }) {
  const body = h("div");
  const refresh = async () => replace(body, table([
    ["Store", (row) => row.store], ["Ids", (row) => count(row.ids), "num"], ["Rows", (row) => count(row.rows), "num"], ["Size", (row) => size(row.bytes), "num"],
    ["Oldest", (row) => duration(row.oldest_age)], ["Cleared up to version", (row) => count(row.expired_version), "num"]], (await get("ids")).stores, "No ids are kept."));
  await refresh();
  return { title: "Idempotency ids", element: h("div", {}, h("h1", {}, "Idempotency ids"), h("section", { class: "panel" }, body)), refresh };
}
