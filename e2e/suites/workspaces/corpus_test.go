//go:build linux

package workspaces

import (
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/validation"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/pelotech/ot-fleet/api/v1alpha1"
	"github.com/pelotech/ot-fleet/e2e/harness/testenv"
)

// corpus compares what our API accepts with what the layers below accept: the API server, CDI
// and KubeVirt, asked by dry runs of what the agent would create. Each case is one object as an
// author could write it, valid or not.
type corpus struct {
	kind  string
	base  map[string]any
	cases []corpusCase
	// submit sends to the layers below what would be created in ns for an object.
	submit func(t *testing.T, ns string, object *unstructured.Unstructured) error
	// waitReason is the reason that the agent shows for a refusal from below, while it holds
	// no slot; empty for none.
	waitReason func(err error) v1alpha1.Reason
	// waits are refusals from below that our schema cannot express.
	waits []difference
	// stricter are refusals of our own schema where the layers below accept: they would fail
	// later, or do something else than what is written.
	stricter []difference
}

type corpusCase struct {
	name   string
	object *unstructured.Unstructured
}

// difference is a class of cases on which our API and those below disagree on purpose.
type difference struct {
	// refusal matches the text of whoever refuses.
	refusal *regexp.Regexp
	// why it stays.
	why string
	// reason that the agent shows; only for waits.
	reason v1alpha1.Reason
	// otherVersions: only versions of CDI or KubeVirt other than the pinned ones show it.
	otherVersions bool
	// applies restricts the class; nil for all cases.
	applies func(object *unstructured.Unstructured) bool
}

// removed in the place of a value removes the field.
var removed any

// add adds a case with some fields of the base replaced, by path.
func (c *corpus) add(changes map[string]any) {
	object := &unstructured.Unstructured{Object: runtime.DeepCopyJSON(c.base)}
	object.SetGroupVersionKind(v1alpha1.GroupVersion.WithKind(c.kind))
	var names []string
	for _, path := range slices.Sorted(maps.Keys(changes)) {
		names = append(names, path+"="+shorten(changes[path]))
		setPath(object.Object, path, changes[path])
	}
	c.cases = append(c.cases, corpusCase{strings.Join(names, " "), object})
}

// vary adds a case for each value of a field, and of the fields of with.
func (c *corpus) vary(path string, values []any, with ...map[string]any) {
	if len(with) == 0 {
		with = []map[string]any{nil}
	}
	for _, fixed := range with {
		for _, value := range values {
			changes := maps.Clone(fixed)
			if changes == nil {
				changes = map[string]any{}
			}
			changes[path] = value
			c.add(changes)
		}
	}
}

// varyAll adds a case for each combination of the values of fields.
func (c *corpus) varyAll(fields map[string][]any) {
	combinations := []map[string]any{{}}
	for _, path := range slices.Sorted(maps.Keys(fields)) {
		var next []map[string]any
		for _, combination := range combinations {
			for _, value := range fields[path] {
				changes := maps.Clone(combination)
				changes[path] = value
				next = append(next, changes)
			}
		}
		combinations = next
	}
	for _, changes := range combinations {
		c.add(changes)
	}
}

func setPath(object map[string]any, path string, value any) {
	keys := strings.Split(path, ".")
	for _, key := range keys[:len(keys)-1] {
		next, ok := object[key].(map[string]any)
		if !ok {
			next = map[string]any{}
			object[key] = next
		}
		object = next
	}
	if last := keys[len(keys)-1]; value == removed {
		delete(object, last)
	} else {
		object[last] = value
	}
}

func shorten(value any) string {
	text, err := json.Marshal(value)
	if err != nil {
		return err.Error()
	}
	if len(text) > 160 {
		return fmt.Sprintf("%s… (%d bytes)", text[:120], len(text))
	}
	return string(text)
}

// compare sends this run's share of the cases both ways.
func (c *corpus) compare(t *testing.T, ns string, atLeast int) {
	t.Helper()
	share := testenv.TurnShare(c.cases)
	// As kubectl and the agent do: unknown fields are refused.
	strict := client.WithFieldValidation(env.Client(), metav1.FieldValidationStrict)
	accepted, waits, stricter := 0, map[string]int{}, map[string]int{}
	for _, tt := range share {
		setPath(tt.object.Object, "metadata.namespace", ns)
		stored := tt.object.DeepCopy()
		ours := strict.Create(t.Context(), stored, client.DryRunAll)
		if ours != nil {
			stored = tt.object
			assert.True(t, isClearRefusal(ours), "%s %s: no sentence for its author: %v", c.kind, tt.name, ours)
		} else {
			accepted++
		}
		theirs := c.submit(t, ns, stored)
		switch {
		case ours == nil && theirs != nil:
			if d := findDifference(c.waits, theirs, tt.object); d == nil {
				t.Errorf("%s %s: our API accepts what is refused below: %v", c.kind, tt.name, theirs)
			} else {
				waits[d.why]++
				assert.Equal(t, d.reason, c.waitReason(theirs), "%s %s: %v", c.kind, tt.name, theirs)
			}
		case ours != nil && theirs == nil:
			if d := findDifference(c.stricter, ours, tt.object); d == nil {
				t.Errorf("%s %s: our API refuses what is accepted below, for no listed reason: %v", c.kind, tt.name, ours)
			} else {
				stricter[d.why]++
			}
		}
	}
	t.Logf("%d of %d cases of %s: our API accepts %d and refuses %d\naccepted, and wait: %v\nrefused by our API alone: %v", len(share), len(c.cases), c.kind, accepted, len(share)-accepted, waits, stricter)
	assert.GreaterOrEqual(t, len(c.cases), atLeast)
	if len(share) < len(c.cases) {
		return
	}
	assert.GreaterOrEqual(t, 4*accepted, len(c.cases), "too few cases are accepted")
	assert.LessOrEqual(t, 4*accepted, 3*len(c.cases), "too few cases are refused")
	for _, d := range c.waits {
		assert.True(t, waits[d.why] > 0 || d.otherVersions, "no case shows that it waits: %s", d.why)
	}
	for _, d := range c.stricter {
		assert.Positive(t, stricter[d.why], "no case shows what only our API refuses: %s", d.why)
	}
}

// isClearRefusal reports whether an answer is about the object, and no failure of a rule.
func isClearRefusal(err error) bool {
	return (apierrors.IsInvalid(err) || apierrors.IsBadRequest(err) || apierrors.IsForbidden(err)) &&
		!strings.Contains(err.Error(), "no such") && !strings.Contains(err.Error(), "resulted in error")
}

func findDifference(classes []difference, err error, object *unstructured.Unstructured) *difference {
	for i := range classes {
		if d := &classes[i]; d.refusal.MatchString(err.Error()) && (d.applies == nil || d.applies(object)) {
			return d
		}
	}
	return nil
}

// decode reads an object as agent and hub do.
func decode(object *unstructured.Unstructured, into any) error {
	text, err := json.Marshal(object)
	if err != nil {
		return err
	}
	if err := json.Unmarshal(text, into); err != nil {
		return fmt.Errorf("it cannot be decoded: %w", err)
	}
	return nil
}

// errImpossibleName: no object can have the name that a field has.
var errImpossibleName = errors.New("no object can have this name")

// checkNames checks names that are written in the fields of an object, by kind.
func checkNames(names map[string]string) error {
	for _, kind := range slices.Sorted(maps.Keys(names)) {
		if name := names[kind]; name != "" {
			if problems := validation.NameIsDNSSubdomain(name, false); len(problems) > 0 {
				return fmt.Errorf("%w: %s %q: %s", errImpossibleName, kind, name, problems[0])
			}
		}
	}
	return nil
}

// everySecond keeps a field that is validated as another one from costing as much.
func everySecond(values []any) (some []any) {
	for i := 0; i < len(values); i += 2 {
		some = append(some, values[i])
	}
	return some
}

// objectNames are names that objects can have, or not.
var objectNames = []any{
	"a", "", "a..b", "A", "a.b", "a_b", "1", ".a", "a.", "-a", "a-", "a.-b", "a\n", "a b", " a", "ü", "a/b", "*",
	strings.Repeat("a", 64), strings.Repeat("a", 63), strings.Repeat("a", 253), int64(1), strings.Repeat("a", 254), []any{"a"}, removed,
}

// sizes are quantities, or not.
var sizes = []any{
	"24Gi", "1Mi", "1048576", "1048575", "0", "-1Gi", "-0", "1.5Gi", "1.5", "0.5Mi", "1e9", "1E", "1Ei", "8E", "64Ti", "65Ti", "1Pi", "24GB", "24GiB",
	"24 Gi", " 24Gi", "24Gi ", "24Gi\n", "24gi", "Gi", "", "1Mi1", "0x10", "1_000", "+5Gi", "1048576.5", "1048576500m", "1k", "2000K", "∞", "1e400", "NaN",
	"9223372036854775807", strings.Repeat("1", 40), int64(5 << 30), int64(0), int64(-5), 1.5e9, true, removed, map[string]any{}, []any{"1Gi"},
}
