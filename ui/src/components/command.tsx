import { useSignal } from '@preact/signals'

/** CopyButton copies a text. */
export function CopyButton({ text, label = 'Copy', title }: { text: string; label?: string; title?: string }) {
  const copied = useSignal(false)
  const copy = async (): Promise<void> => {
    try {
      await navigator.clipboard.writeText(text)
    } catch {
      return // the text is on the page, and can be selected
    }
    copied.value = true
    setTimeout(() => (copied.value = false), 2000)
  }
  return (
    <button type="button" class="button button-quiet" onClick={() => void copy()} aria-label={`${label}: ${text.slice(0, 120)}`} title={title}>
      {copied.value ? 'Copied' : label}
    </button>
  )
}

/** Command shows a command line to copy: what the page says, said by kubectl ot. */
export function Command({ text, label }: { text: string; label?: string }) {
  return (
    <div class="command">
      {label && <span class="muted">{label}</span>}
      <code>{text}</code>
      <CopyButton text={text} />
    </div>
  )
}
