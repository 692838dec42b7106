// Before anything is drawn: light or dark, where the user has chosen. Else styles follow the system.
try {
  const theme = localStorage.getItem("theme");
  if (theme) document.documentElement.dataset.theme = theme;
} catch { /* no storage here: the system's */ }
