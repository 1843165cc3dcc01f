package policy_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	apipolicy "github.com/pelotech/ot-fleet/api/policy"
	"github.com/pelotech/ot-fleet/hub/policy"
)

func TestPreview(t *testing.T) {
	edge := map[string]string{"edge": "true"}
	members := []policy.Member{{Name: "berlin"}, {Name: "paris", Labels: edge}, {Name: "frankfurt"}, {Name: "oslo", Labels: edge}}
	held := int32(3)
	withHeld := append(slices.Clone(members), policy.Member{Name: "helsinki", OwnConcurrency: &held})
	inForce := mustParse(t, data{"concurrency": "4"})
	for name, tt := range map[string]struct {
		now  *policy.Policy
		then data
		want string
	}{
		"nothing changes": {inForce, data{"concurrency": "4"}, `
0 of 4 members would change. Concurrency: 0 gain, 0 lose, the fleet's sum goes from 16 to 16 (+0).
`},
		"who gains and who loses": {inForce, data{"concurrency": "4", "overrides": `
- selector: {matchLabels: {edge: "true"}}
  concurrency: 1
- cluster: frankfurt
  concurrency: 9
  retryLimit: 5
- cluster: frnkfurt
  concurrency: 9`}, `
3 of 4 members would change. Concurrency: 1 gain, 2 lose, the fleet's sum goes from 16 to 15 (-1).
No member is subject to: override cluster=frnkfurt.
MEMBER     NOW  THEN  CHANGE  OTHER KEYS      FROM
frankfurt  4    9     +5      retryLimit 3→5  override cluster=frankfurt
oslo       4    1     -3      -               override edge=true
paris      4    1     -3      -               override edge=true
`},
		"another key alone": {inForce, data{"concurrency": "4", "overrides": `[{cluster: oslo, preflight: false}]`}, `
1 of 4 members would change. Concurrency: 0 gain, 0 lose, the fleet's sum goes from 16 to 16 (+0).
MEMBER  NOW  THEN  CHANGE  OTHER KEYS            FROM
oslo    4    4     0       preflight true→false  override cluster=oslo
`},
		"the first policy": {nil, data{"concurrency": "2", "overrides": `[{cluster: oslo, concurrency: 0}]`}, `
4 of 4 members would change. Concurrency: 3 gain, 0 lose, the fleet's sum goes from 0 to 6 (+6).
MEMBER     NOW  THEN  CHANGE  OTHER KEYS  FROM
berlin     -    2     +2      -           fleet default
frankfurt  -    2     +2      -           fleet default
oslo       -    0     0       -           override cluster=oslo
paris      -    2     +2      -           fleet default
`},
		"held by its own ConfigMap": {inForce, data{"concurrency": "4", "overrides": `[{cluster: helsinki, concurrency: 8}, {cluster: oslo, concurrency: 1}]`}, `
2 of 5 members would change. Concurrency: 0 gain, 1 lose, the fleet's sum goes from 19 to 16 (-3).
Held lower by key concurrency of their own policy ConfigMap: helsinki.
MEMBER    NOW           THEN          CHANGE  OTHER KEYS  FROM
helsinki  4, held to 3  8, held to 3  0       -           override cluster=helsinki
oslo      4             1             -3      -           override cluster=oslo
`},
		"contradicting overrides": {inForce, data{"overrides": `
- {selector: {matchLabels: {edge: "true"}}, retryBackoffDuration: 50m}
- {cluster: oslo, maxRetryBackoff: 40m}`}, `
It would be refused: the overrides contradict each other for 1 of 4 members.
oslo: maxRetryBackoff: 40m0s is less than retryBackoffDuration, 50m0s (override edge=true, override cluster=oslo)
`},
	} {
		t.Run(name, func(t *testing.T) {
			members := members
			if strings.HasPrefix(name, "held") {
				members = withHeld
			}
			got := policy.Preview(tt.now, mustParse(t, tt.then), members, time.Now())
			assert.Equal(t, strings.TrimPrefix(tt.want, "\n"), got)
		})
	}
}

// A cache lists members in any order: which of them a comparison names does not change with it.
func TestComparisonHasNoOrderOfItsOwn(t *testing.T) {
	own := int32(1)
	var members []policy.Member
	for i := range 30 {
		members = append(members, policy.Member{Name: fmt.Sprintf("m%02d", i), Labels: map[string]string{"edge": "true"}, OwnConcurrency: &own})
	}
	reversed := slices.Clone(members)
	slices.Reverse(reversed)
	inForce := mustParse(t, data{"concurrency": "4"})
	for name, then := range map[string]data{
		"held": {"concurrency": "3"},
		"refused": {"overrides": `
- {selector: {matchLabels: {edge: "true"}}, retryBackoffDuration: 50m}
- {selector: {matchExpressions: [{key: edge, operator: Exists}]}, maxRetryBackoff: 40m}`},
	} {
		t.Run(name, func(t *testing.T) {
			c := policy.Compare(inForce, mustParse(t, then), members, time.Now())
			require.Len(t, members, len(c.Held)+len(c.Refused))
			assert.True(t, slices.IsSorted(c.Held))
			assert.True(t, slices.IsSortedFunc(c.Refused, func(a, b apipolicy.KeyError) int { return strings.Compare(a.Key, b.Key) }))
			assert.Equal(t, c, policy.Compare(inForce, mustParse(t, then), reversed, time.Now()))
			assert.Equal(t, "m29", reversed[0].Name, "members of a caller are not sorted in place")
		})
	}
}

func TestPreviewIsBounded(t *testing.T) {
	var members []policy.Member
	var overrides strings.Builder
	for i := range 1000 {
		members = append(members, policy.Member{Name: fmt.Sprintf("m%03d", i)})
		fmt.Fprintf(&overrides, "- {cluster: no-%d, concurrency: 1}\n", i)
	}
	fmt.Fprint(&overrides, "- {cluster: m777, concurrency: 100}\n")
	got := policy.Preview(mustParse(t, data{"concurrency": "4"}), mustParse(t, data{"concurrency": "3", "overrides": overrides.String()}), members, time.Now())
	assert.Contains(t, got, "1000 of 1000 members would change. Concurrency: 1 gain, 999 lose, the fleet's sum goes from 4000 to 3097 (-903).")
	assert.Contains(t, got, "and 990 more.\n")
	assert.Contains(t, got, "m777", "the largest changes are shown")
	assert.Contains(t, got, "m098")
	assert.NotContains(t, got, "m099")
	assert.True(t, strings.HasSuffix(got, "\nand 900 more\n"))
	assert.Less(t, len(got), 32<<10)
}
