// Light or dark, as the system or the user chooses.

const KEPT = 'roadweave colours';
const CHOICES = ['system', 'light', 'dark'] as const;
const WORDS = { system: 'as the system', light: 'light', dark: 'dark' };

export function choose(button: HTMLButtonElement, changed: () => void): void {
  let place = 0;
  try {
    place = Math.max(0, CHOICES.indexOf(localStorage.getItem(KEPT) as (typeof CHOICES)[number]));
  } catch {
    // As the system has it.
  }
  const show = () => {
    const choice = CHOICES[place] ?? 'system';
    document.documentElement.dataset.theme = choice;
    button.textContent = `Colours: ${WORDS[choice]}`;
    changed();
  };
  button.addEventListener('click', () => {
    place = (place + 1) % CHOICES.length;
    try {
      localStorage.setItem(KEPT, CHOICES[place] ?? 'system');
    } catch {
      // Until the page is closed.
    }
    show();
  });
  matchMedia('(prefers-color-scheme: dark)').addEventListener('change', show);
  show();
}
