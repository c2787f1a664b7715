// The tabs: one panel at a time, arrow keys between them (WAI-ARIA Authoring Practices, "Tabs").
import { element } from './page.ts';

const tabs = [...document.querySelectorAll<HTMLButtonElement>('[role=tab]')];

function open(chosen: HTMLButtonElement, onOpen: (tab: string) => void): void {
  for (const tab of tabs) {
    tab.setAttribute('aria-selected', String(tab === chosen));
    tab.tabIndex = tab === chosen ? 0 : -1;
    element(tab.getAttribute('aria-controls')!).hidden = tab !== chosen;
  }
  onOpen(chosen.id);
}

/** Opens the tab that the address names (`#translate`), else the first. `onOpen` is called then and with each that is opened later. */
export function startTabs(onOpen: (tab: string) => void): void {
  for (const [i, tab] of tabs.entries()) {
    tab.addEventListener('click', () => open(tab, onOpen));
    tab.addEventListener('keydown', (event) => {
      const to = { ArrowRight: i + 1, ArrowLeft: i - 1 + tabs.length, Home: 0, End: tabs.length - 1 }[event.key];
      if (to === undefined) return;
      event.preventDefault();
      const next = tabs[to % tabs.length];
      next.focus();
      open(next, onOpen);
    });
  }
  open(tabs.find((tab) => `#${tab.id}` === location.hash) ?? tabs[0], onOpen);
}
