import { describe, expect, it } from 'vitest'
import { RequestError } from './client'
import { refusalOf } from './outcome'

describe('refusalOf', () => {
  it.each([
    [403, 'Refused:'],
    [401, 'Refused:'],
    [409, 'Changed meanwhile:'],
    [422, 'Not done:'],
    [503, 'Not done:'],
  ])('shows the words of the API server as they are: %i', (status, title) => {
    expect(refusalOf(new RequestError(status, 'only approvers may'))).toEqual({ title, text: 'only approvers may' })
  })
  it.each([0, 500, 502, 504])('does not claim that nothing was done when the answer is lost: %i', (status) => {
    const { title, text } = refusalOf(new RequestError(status, 'nothing answers'))
    expect(title).toBe('Unknown whether it was done:')
    expect(text).toContain('nothing answers')
  })
  it('shows what the page itself refuses', () => {
    expect(refusalOf(new Error('it is at version 2 now'))).toEqual({ title: 'Not done:', text: 'it is at version 2 now' })
  })
})
