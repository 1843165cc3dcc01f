import { expect, it } from 'vitest'
import type { EffectiveImage } from './api'
import { fieldsText, originText } from './effective'

const effective: EffectiveImage = {
  revision: 'r',
  digest: 'd',
  fields: [
    { field: 'checksum', from: 'overrides[2]' },
    { field: 'storageClass', value: 'lvm', from: 'overrides[0]' },
    { field: 'url', value: 'https://a/b\u001b', from: 'template' },
  ],
}

it('names the overrides and the storage class', () => expect(originText(effective)).toBe('in lvm, from overrides[0] and overrides[2]'))
it('names the template', () => expect(originText({ ...effective, fields: effective.fields.slice(2) })).toBe('from the template'))
it('lists the fields', () => {
  expect(fieldsText(effective)).toContain('checksum: (removed), from overrides[2]\nstorageClass: lvm, from overrides[0]\nurl: https://a/b')
  expect(fieldsText(effective)).not.toContain('\u001b')
})
