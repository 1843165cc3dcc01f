import { useSignal } from '@preact/signals'
import { announce } from '../announce'
import { plainText } from '../format'
import { session } from '../session'
import { flagsOfHub, withFlags, withHub } from '../shellword'

/** CopyButton copies a text. */
export function CopyButton({ text, label = 'Copy' }: { text: string; label?: string }) {
  const state = useSignal(label)
  const copy = async (): Promise<void> => {
    let outcome = 'Copied'
    try {
      await navigator.clipboard.writeText(text)
    } catch {
      outcome = 'Not copied' // a browser may not allow it
    }
    state.value = outcome
    announce(outcome + '.')
    setTimeout(() => (state.value = label), 2000)
  }
  return (
    <button type="button" class="button button-quiet" onClick={() => void copy()} aria-label={`${state.value}: ${text.slice(0, 120)}`}>
      {state.value}
    </button>
  )
}

/** Returns a command line for the hub that this page is of. */
export function forHub(line: string): string {
  return withHub(line, session.value.state === 'signedIn' ? session.value.me : undefined)
}

/** Returns a text of hub or member to show. Invariant: each message passes here, so that the commands in it act on the hub of this page. */
export function formatMessage(text: string, most?: number): string {
  return plainText(withFlags(text, flagsOfHub(session.value.state === 'signedIn' ? session.value.me : undefined)), most)
}

/** CopyCommand copies a command line. Invariant: each one of the page passes forHub, here or in Command. */
export function CopyCommand({ text }: { text: string }) {
  return <CopyButton text={forHub(text)} label="Copy command" />
}

/** Command shows a command line to copy: what the page says, said by kubectl ot. */
export function Command({ text, label }: { text: string; label?: string }) {
  const line = forHub(text)
  return (
    <div class="command">
      {label && <span class="muted">{label}</span>}
      <code>{line}</code>
      <CopyButton text={line} />
    </div>
  )
}
