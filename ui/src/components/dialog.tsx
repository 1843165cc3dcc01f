import type { ComponentChildren } from 'preact'
import { useId, useLayoutEffect, useRef } from 'preact/hooks'

/** Gives the focus back to what had it before a dialog: to the heading of the page where that is gone. */
export function returnFocus(before: Element | null): void {
  const back = before instanceof HTMLElement && before.isConnected && before !== document.body ? before : document.querySelector<HTMLElement>('main h1')
  back?.focus({ preventScroll: back === before })
}

/** Dialog is shown over the page until it is closed, by Escape too. The focus returns to where it was. */
export function Dialog({ title, onClose, children }: { title: ComponentChildren; onClose: () => void; children: ComponentChildren }) {
  const element = useRef<HTMLDialogElement>(null)
  const heading = useRef<HTMLHeadingElement>(null)
  const id = useId()
  // Before the next key is read: Escape closes what Enter has just opened.
  useLayoutEffect(() => {
    const dialog = element.current
    const before = document.activeElement
    dialog?.showModal()
    heading.current?.focus()
    return () => {
      dialog?.close()
      returnFocus(before)
    }
  }, [])
  return (
    <dialog
      ref={element}
      class="dialog"
      aria-labelledby={id}
      onCancel={(event) => {
        event.preventDefault()
        onClose()
      }}
    >
      <div class="panel-head">
        <h2 ref={heading} id={id} tabIndex={-1}>
          {title}
        </h2>
        <button type="button" class="button button-quiet" aria-label="Close" onClick={onClose}>
          ✕
        </button>
      </div>
      {children}
    </dialog>
  )
}
