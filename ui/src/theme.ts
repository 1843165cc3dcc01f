// Light, dark, or as the system is.
import { computed, effect, signal } from '@preact/signals'

export type Choice = 'system' | 'light' | 'dark'

const key = 'ot-fleet-theme'
const system = window.matchMedia('(prefers-color-scheme: dark)')
const systemDark = signal(system.matches)
system.addEventListener('change', (event) => (systemDark.value = event.matches))

const choice = signal<Choice>(read())

function read(): Choice {
  try {
    const stored = localStorage.getItem(key)
    return stored === 'light' || stored === 'dark' ? stored : 'system'
  } catch {
    return 'system' // storage may be switched off
  }
}

export const theme = {
  choice,
  dark: computed(() => choice.value === 'dark' || (choice.value === 'system' && systemDark.value)),
}

export function chooseTheme(next: Choice): void {
  choice.value = next
  try {
    localStorage.setItem(key, next)
  } catch {
    // it holds until the page is left
  }
}

effect(() => {
  document.documentElement.dataset.theme = choice.value
})

/** Resolves a colour for a canvas, which knows no custom properties and no light-dark(). */
export function resolveColor(element: Element, color: string): string {
  const probe = document.createElement('span')
  probe.style.color = color
  element.append(probe)
  const resolved = getComputedStyle(probe).color
  probe.remove()
  return resolved
}
