import { expect, test } from 'vitest'
import { answerTo } from './asked'
import { RequestError } from './client'

const list = '/fleet/v1/members?sort=name'
const sorted = '/fleet/v1/members?sort=state'
const radius = '/fleet/v1/blastradius?policy=5'
const otherRadius = '/fleet/v1/blastradius?policy=6'
const value = { value: 'of the path', at: 1 }
const before = { value: 'before', at: 1, pending: true }
const error = new RequestError(503, 'no hub')

test.each([
  ['nothing was asked', radius, { answer: {} }, {}],
  ['no path', undefined, { answer: {} }, {}],
  ['its answer', radius, { path: radius, answer: value }, value],
  ['its answer is on its way', radius, { path: radius, answer: {} }, {}],
  ['its answer arrived after what was kept', sorted, { path: sorted, answer: value, kept: before }, value],
  ['what was kept', sorted, { path: sorted, answer: {}, kept: before }, before],
  ['it failed, and what was kept is no answer', sorted, { path: sorted, answer: { error }, kept: before }, { error }],
  ['the answer to another path', otherRadius, { path: radius, answer: value }, {}],
  ['the failure of another path', otherRadius, { path: radius, answer: { error } }, {}],
  ['the list before', sorted, { path: list, answer: value }, { ...value, pending: true }],
  ['the list before, which failed later', sorted, { path: list, answer: { ...value, error } }, { ...value, pending: true }],
  ['the list before that', sorted, { path: list, answer: {}, kept: before }, before],
  ['the list before has no answer', sorted, { path: list, answer: {} }, {}],
  ['the path is no longer asked for', undefined, { path: radius, answer: value }, {}],
])('%s', (_, path, asked, want) => expect(answerTo(path, asked)).toEqual(want))
