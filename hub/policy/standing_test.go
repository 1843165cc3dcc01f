package policy_test

import (
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"

	"github.com/pelotech/ot-fleet/hub/policy"
)

// What members make wrong of the policy in force refuses no edit, unless the edit makes it worse.
func TestValidateChange(t *testing.T) {
	patient := map[string]string{"patient": "yes"}
	members := []policy.Member{{Name: "a"}, {Name: "b"}, {Name: "c"}, {Name: "frankfurt", Labels: patient}}
	full := data{"fleetConcurrency": "3", "safeConcurrency": "1", "concurrency": "2"}
	contradicting := data{"concurrency": "2", "overrides": contradictingOverrides}
	with := func(base, over data) data {
		merged := data{}
		for _, part := range []data{base, over} {
			for key, text := range part {
				merged[key] = text
			}
		}
		return merged
	}
	const shares, overrides = "safeConcurrency", "member frankfurt: maxRetryBackoff"
	for name, tt := range map[string]struct {
		inForce, next             data
		wantRefused, wantStanding string // keys
	}{
		"no policy is in force":              {nil, full, shares, ""},
		"the shares were within the budget":  {data{"fleetConcurrency": "4", "safeConcurrency": "1"}, full, shares, ""},
		"the same":                           {full, full, "", shares},
		"a pause":                            {full, with(full, data{"concurrency": "0"}), "", shares},
		"smaller shares of some":             {full, with(full, data{"fleetConcurrency": "3", "overrides": "- {cluster: a, safeConcurrency: 0}"}), "", ""},
		"a larger share":                     {full, with(full, data{"overrides": "- {cluster: a, safeConcurrency: 2}"}), shares, ""},
		"a share that moves":                 {full, with(full, data{"overrides": "[{cluster: a, safeConcurrency: 2}, {cluster: b, safeConcurrency: 0}]"}), shares, ""},
		"a smaller budget":                   {full, with(full, data{"fleetConcurrency": "2"}), shares, ""},
		"a larger budget that is not enough": {with(full, data{"fleetConcurrency": "2"}), full, "", shares},
		"overrides that contradict":          {data{"concurrency": "2"}, contradicting, overrides, ""},
		"they did before":                    {contradicting, with(contradicting, data{"concurrency": "0"}), "", overrides},
		"they did before, and shares":        {contradicting, with(contradicting, full), shares, overrides},
	} {
		t.Run(name, func(t *testing.T) {
			var inForce *policy.Policy
			if tt.inForce != nil {
				inForce = mustParse(t, tt.inForce)
			}
			next := mustParse(t, tt.next)
			errs, standing := next.ValidateChange(inForce, members)
			keys := func(list []string) string { return strings.Join(list, " ") }
			var refused, stands []string
			for _, e := range errs {
				refused = append(refused, e.Key)
			}
			for _, e := range standing {
				stands = append(stands, e.Key)
			}
			assert.Equal(t, tt.wantRefused, keys(refused))
			assert.Equal(t, tt.wantStanding, keys(stands))

			c := policy.Compare(inForce, next, members, time.Now())
			assert.Equal(t, tt.wantRefused != "", len(c.Refused)+len(c.OverBudget) > 0, "a preview says so")
		})
	}
}
