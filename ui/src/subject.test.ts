import { describe, expect, it } from 'vitest'
import { subjectOf } from './subject'

describe('subjectOf', () => {
  it.each([
    ['/fleet/v1/members?offset=50&sort=name', '/fleet/v1/members?search=be', true],
    ['/fleet/v1/transfers?cluster=bergen', '/fleet/v1/transfers', true],
    ['/fleet/v1/members/images?member=bergen&page=2', '/fleet/v1/members/images?member=bergen', true],
    ['/fleet/v1/members/images?member=bergen', '/fleet/v1/members/images?member=oslo', false],
    ['/fleet/v1/members/detail?member=bergen', '/fleet/v1/members/detail?member=oslo', false],
    ['/fleet/v1/prunereports/groups?report=spring', '/fleet/v1/prunereports/groups?includeOthers=true&report=spring', false],
    ['/fleet/v1/members', '/fleet/v1/images', false],
  ])('%s and %s', (a, b, same) => expect(subjectOf(a) === subjectOf(b)).toBe(same))
})
