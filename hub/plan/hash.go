package plan

import (
	"cmp"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"maps"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"

	apipolicy "github.com/pelotech/ot-fleet/api/policy"
	"github.com/pelotech/ot-fleet/api/v1alpha1"
)

// equalContent reports whether two plans have the same hash without computing it, which
// is most of the cost of a member that has not changed.
func equalContent(a, b *v1alpha1.ClusterPlanSpec) bool {
	return a.ClusterUID == b.ClusterUID && maps.Equal(a.Policy, b.Policy) &&
		slices.EqualFunc(a.Images, b.Images, equalImage) && slices.Equal(a.Kept, b.Kept) && slices.Equal(a.Retired, b.Retired) &&
		slices.EqualFunc(a.Inquiries, b.Inquiries, equalInquiry) && slices.Equal(a.Prunes, b.Prunes) && ptr.Equal(a.ConfirmedNonce, b.ConfirmedNonce)
}

// equalInquiry ignores the plan version since which it is asked.
func equalInquiry(a, b v1alpha1.PlanInquiry) bool { return a.UID == b.UID }

// equalImage ignores plannedAt.
func equalImage(a, b v1alpha1.PlannedImage) bool {
	return a.Namespace == b.Namespace && a.Name == b.Name && a.Retry == b.Retry && a.Spec.Equal(&b.Spec)
}

func imageKey(i v1alpha1.PlannedImage) (namespace, name string) { return i.Namespace, i.Name }

func keptKey(i v1alpha1.KeptImage) (namespace, name string) { return i.Namespace, i.Name }

func retiredKey(i v1alpha1.RetiredImage) (namespace, name string) { return i.Namespace, i.Name }

func pruneKey(i v1alpha1.PlannedPrune) (namespace, name string) { return i.Namespace, i.Name }

// sortedByName returns a list by namespace and name; the list itself if it is sorted.
func sortedByName[T any](list []T, key func(T) (namespace, name string)) []T {
	order := func(a, b T) int {
		namespaceA, nameA := key(a)
		namespaceB, nameB := key(b)
		return cmp.Or(strings.Compare(namespaceA, namespaceB), strings.Compare(nameA, nameB))
	}
	if slices.IsSortedFunc(list, order) {
		return list
	}
	list = slices.Clone(list)
	slices.SortFunc(list, order)
	return list
}

// Hash returns the hash of a plan's content, that is of all that changes what the member
// does. It ignores the order of images, plannedAt and the versions of inquiries.
func Hash(p *v1alpha1.ClusterPlanSpec) string {
	images := slices.Clone(sortedByName(p.Images, imageKey))
	for i := range images {
		images[i].PlannedAt = nil
	}
	var inquiries []types.UID
	for _, asked := range p.Inquiries {
		inquiries = append(inquiries, asked.UID)
	}
	slices.Sort(inquiries)
	// Invariant: a plan without a value in a field hashes as before that field existed.
	return hashJSON(struct {
		ClusterUID types.UID               `json:"clusterUID"`
		Policy     map[string]string       `json:"policy,omitempty"`
		Images     []v1alpha1.PlannedImage `json:"images,omitempty"`
		Kept       []v1alpha1.KeptImage    `json:"kept,omitempty"`
		Retired    []v1alpha1.RetiredImage `json:"retired,omitempty"`
		Inquiries  []types.UID             `json:"inquiries,omitempty"`
		Prunes     []v1alpha1.PlannedPrune `json:"prunes,omitempty"`
		Nonce      *string                 `json:"confirmedNonce,omitempty"`
	}{p.ClusterUID, p.Policy, images, sortedByName(p.Kept, keptKey), sortedByName(p.Retired, retiredKey), inquiries, sortedByName(p.Prunes, pruneKey), p.ConfirmedNonce})
}

// HashPolicy returns the hash of a policy. A key with its default hashes like an absent
// key, so that a later version with more keys agrees.
func HashPolicy(data map[string]string) string {
	defaults := apipolicy.Default().ToData()
	set := maps.Clone(data)
	maps.DeleteFunc(set, func(key, text string) bool { return defaults[key] == text })
	return hashJSON(set)
}

// hashJSON relies on encoding/json sorting the keys of maps.
func hashJSON(content any) string {
	text, err := json.Marshal(content)
	if err != nil {
		panic(err) // plain types of this package
	}
	sum := sha256.Sum256(text)
	return hex.EncodeToString(sum[:16])
}
