// Before anything is drawn: the colours chosen the last time. Without a choice the system's apply.
const chosen = localStorage.getItem("mainspring-theme");
if (chosen === "light" || chosen === "dark") document.documentElement.dataset.theme = chosen;
