// Light, dark, or what the system says; remembered where the browser allows it.
const key = 'wasmformer-theme';

export function startTheme(onChange: () => void): void {
  let kept = 'auto';
  try {
    kept = localStorage.getItem(key) ?? kept;
  } catch {}
  const radios = document.querySelectorAll<HTMLInputElement>('input[name=theme]');
  const apply = (theme: string) => {
    if (theme === 'auto') delete document.documentElement.dataset.theme;
    else document.documentElement.dataset.theme = theme;
    onChange();
  };
  for (const radio of radios) {
    radio.checked = radio.value === kept;
    radio.addEventListener('change', () => {
      try {
        localStorage.setItem(key, radio.value);
      } catch {}
      apply(radio.value);
    });
  }
  matchMedia('(prefers-color-scheme: dark)').addEventListener('change', onChange);
  apply(kept);
}
