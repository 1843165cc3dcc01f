import { expect, test } from 'vitest'
import { ChooseClustersMessage, UnknownPathMessage } from './api'
import { isMatrixTooLarge, isOlderHub, lackingRight, nameRight } from './refused'

test.each([
  ['/k8s/apis/pelotech.ot/v1alpha1/imageprunes', 'imageprunes.pelotech.ot is forbidden: User "ben" cannot create resource "imageprunes" in API group "pelotech.ot" at the cluster scope', { verb: 'create', resource: 'imageprunes' }],
  ['/k8s/api/v1/namespaces/a/configmaps/p', 'configmaps "p" is forbidden: User "ben" cannot patch resource "configmaps" in API group "" in the namespace "a"', { verb: 'patch', resource: 'configmaps' }],
  ['/fleet/v1/summary', 'Authorization denied for user ben', { verb: 'get', resource: 'fleet' }],
  ['/k8s/apis/pelotech.ot/v1alpha1/imageprunes', 'a page of another site asked for this', undefined],
])('the right that %s lacks', (path, message, want) => {
  expect(lackingRight(path, message)).toEqual(want)
})

test('rights have words', () => {
  expect(nameRight({ verb: 'get', resource: 'fleet' })).toBe('get /fleet/v1/*, the read API of the hub')
  expect(nameRight({ verb: 'create', resource: 'imageprunes' })).toBe('create imageprunes')
})

test('an older hub', () => {
  expect(isOlderHub(404, '/fleet/v1/policy', UnknownPathMessage + ', only /fleet/v1/members')).toBe(true)
  expect(isOlderHub(400, '/fleet/v1/prunereports', '/fleet/v1/prunereports takes no parameter name, only after, limit')).toBe(true)
  expect(isOlderHub(404, '/fleet/v1/members/detail', 'there is no MemberCluster oslo')).toBe(false)
  expect(isOlderHub(400, '/fleet/v1/members', 'limit=0: must be a number from 1 to 1000')).toBe(false)
  expect(isOlderHub(404, '/k8s/x', UnknownPathMessage)).toBe(false)
})

test.each([
  ['too many sources', { status: 400, message: `the chosen clusters report more than 599 sources, the most for 3500 columns: ${ChooseClustersMessage}` }, true],
  ['a selector that is half typed', { status: 400, message: 'selector=region in is no label selector such as region=nordics: unable to parse requirement' }, false],
  ['no replica is elected', { status: 503, message: 'no replica of the hub is elected: try again' }, false],
  ['the network is lost', { status: 0, message: 'nothing answers at this address' }, false],
  ['no error', undefined, false],
])('whether a matrix is too large: %s', (_, error, want) => expect(isMatrixTooLarge(error)).toBe(want))
