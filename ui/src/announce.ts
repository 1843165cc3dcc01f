// Screen readers announce changes, at most every ten seconds.
import { signal } from '@preact/signals'

export const announcement = signal('')

const quietMilliseconds = 10_000
let last = 0
let timer: ReturnType<typeof setTimeout> | undefined

export function announce(text: string): void {
  clearTimeout(timer)
  timer = setTimeout(
    () => {
      last = Date.now()
      announcement.value = text
    },
    Math.max(0, last + quietMilliseconds - Date.now()),
  )
}
