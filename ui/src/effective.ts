// What a cluster is to have of a FleetDiskImage, in words.
import type { EffectiveImage } from './api'
import { plainText } from './format'

const template = 'template'

/** Says the storage class, and which overrides the fields of a cluster are from. */
export function originText(e: EffectiveImage): string {
  const storageClass = e.fields.find((f) => f.field === 'storageClass')?.value
  const from = [...new Set(e.fields.map((f) => f.from).filter((f) => f !== template))].sort()
  return `${storageClass ? `in ${plainText(storageClass, 80)}, ` : ''}from ${from.length > 0 ? from.join(' and ') : 'the template'}`
}

/** Says each field and where it is from, a line each. */
export function fieldsText(e: EffectiveImage): string {
  return e.fields.map((f) => `${f.field}: ${plainText(f.value || '(removed)', 240)}, from ${f.from === template ? 'the template' : f.from}`).join('\n')
}
