// Why an image of a cluster is where it is: opened over any page by the parameter why of the address.
import { useSignal } from '@preact/signals'
import type { ComponentType } from 'preact'
import { useLayoutEffect, useRef } from 'preact/hooks'
import { returnFocus } from './components/dialog'
import { plainText } from './format'
import { param, setParams } from './route'
import { parseWhy } from './whyaddress'

export { whyOf } from './whyaddress'

type Detail = ComponentType<{ cluster: string; namespace: string; name: string }>

export function WhyPanel() {
  const of = parseWhy(param('why'))
  return of ? <Sheet key={param('why')} {...of} /> : null
}

function close(): void {
  setParams({ why: undefined })
}

function Sheet(of: { cluster: string; namespace: string; name: string }) {
  const dialog = useRef<HTMLDialogElement>(null)
  const detail = useSignal<Detail | 'failed' | undefined>(undefined)
  // Before the next key is read: Escape closes what Enter has just opened.
  useLayoutEffect(() => {
    const element = dialog.current
    const before = document.activeElement
    element?.showModal()
    element?.querySelector('h2')?.focus()
    import('./components/whydetail').then(
      (module) => (detail.value = module.WhyDetail as never),
      () => (detail.value = 'failed'),
    )
    return () => {
      element?.close()
      returnFocus(before)
    }
  }, [])
  const Content = detail.value
  return (
    <dialog
      ref={dialog}
      class="why"
      aria-labelledby="why-title"
      onCancel={(event) => {
        event.preventDefault()
        close()
      }}
      onClick={(event) => {
        if (event.target === dialog.current) close() // beside the sheet
      }}
    >
      <div class="why-sheet">
        <div class="panel-head">
          <h2 id="why-title" tabIndex={-1}>
            {plainText(of.name)} <span class="muted">in {plainText(of.cluster)}</span>
          </h2>
          <button type="button" class="button button-quiet" aria-label="Close" onClick={close}>
            ✕
          </button>
        </div>
        {Content === 'failed' ? (
          <p class="banner banner-bad" role="alert">
            This could not be loaded. The hub may have been upgraded meanwhile: load the page anew.
          </p>
        ) : (
          Content && <Content {...of} />
        )}
      </div>
    </dialog>
  )
}
