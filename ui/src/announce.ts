// Screen readers announce changes, at most every ten seconds.
import { signal } from '@preact/signals'

export const announcement = signal('')

const quietMilliseconds = 10_000
let last = 0
let timer: ReturnType<typeof setTimeout> | undefined
const waiting = new Set<string>()

/** Announces a text. What comes too soon after another is announced together: nothing replaces a failure. */
export function announce(text: string): void {
  waiting.add(text)
  timer ??= setTimeout(
    () => {
      last = Date.now()
      timer = undefined
      const said = [...waiting].join(' ')
      waiting.clear()
      // The same text again is a change, too.
      announcement.value = said === announcement.value ? said + '\u00a0' : said
    },
    Math.max(0, last + quietMilliseconds - Date.now()),
  )
}
