import { useSignal } from '@preact/signals'
import type { ComponentChildren } from 'preact'

/** Hint has more to say than there is room for. It is shown on hover, and in place with the focus: by keyboard, and where there is no pointer. */
export function Hint({ text, class: name, children }: { text: string | undefined; class?: string; children: ComponentChildren }) {
  const { isOpen, ...handlers } = useOpen()
  if (!text) return <span class={name}>{children}</span>
  return (
    <span class={name} tabIndex={0} title={text} {...handlers}>
      {children}
      <span class={isOpen ? 'hint' : 'visually-hidden'}> {text}</span>
    </span>
  )
}

/** Time is a time in words, with the time itself as Hint has it. Who cannot see is read it with the focus only: a page has many. */
export function Time({ iso, children }: { iso: string; children: ComponentChildren }) {
  const { isOpen, ...handlers } = useOpen()
  return (
    <time dateTime={iso} tabIndex={0} title={iso} {...handlers}>
      {children}
      {isOpen && <span class="hint"> {iso}</span>}
    </time>
  )
}

function useOpen() {
  const open = useSignal(false)
  return { isOpen: open.value, onFocus: () => void (open.value = true), onBlur: () => void (open.value = false) }
}
