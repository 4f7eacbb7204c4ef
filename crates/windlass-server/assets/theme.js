// Runs before the page is drawn: a page must not appear in the wrong colors first.
{
  const root = document.documentElement;
  root.classList.add("js");
  try {
    const theme = localStorage.getItem("windlass-theme");
    if (theme === "light" || theme === "dark") root.dataset.theme = theme;
  } catch {
    // Without storage, the page follows the system.
  }
}
