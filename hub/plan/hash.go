package plan

import (
	"cmp"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"maps"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/types"

	apipolicy "github.com/pelotech/ot-fleet/api/policy"
	"github.com/pelotech/ot-fleet/api/v1alpha1"
)

// equalContent tells that two plans hash alike without hashing them: that costs
// most of what there is to do for a member of which nothing has changed.
func equalContent(a, b *v1alpha1.ClusterPlanSpec) bool {
	return a.ClusterUID == b.ClusterUID && maps.Equal(a.Policy, b.Policy) &&
		slices.EqualFunc(a.Images, b.Images, equalImage) && slices.Equal(a.Kept, b.Kept) && slices.Equal(a.Retired, b.Retired) &&
		slices.EqualFunc(a.Inquiries, b.Inquiries, equalInquiry) && slices.Equal(a.Prunes, b.Prunes)
}

// equalInquiry compares all but the plan that was the first to carry them.
func equalInquiry(a, b v1alpha1.PlanInquiry) bool { return a.UID == b.UID }

// equalImage compares all but since when they have been planned.
func equalImage(a, b v1alpha1.PlannedImage) bool {
	size := a.Spec.DiskSize.Cmp(b.Spec.DiskSize)
	a.Spec.DiskSize, b.Spec.DiskSize = resource.Quantity{}, resource.Quantity{}
	return size == 0 && a.Namespace == b.Namespace && a.Name == b.Name && a.Spec == b.Spec
}

func imageKey(i v1alpha1.PlannedImage) (namespace, name string) { return i.Namespace, i.Name }

func keptKey(i v1alpha1.KeptImage) (namespace, name string) { return i.Namespace, i.Name }

func retiredKey(i v1alpha1.RetiredImage) (namespace, name string) { return i.Namespace, i.Name }

func pruneKey(i v1alpha1.PlannedPrune) (namespace, name string) { return i.Namespace, i.Name }

// sortedByName returns a list by namespace and name: itself where it is so already.
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

// Hash is the hash of a plan's content: what the member does differently
// when it changes. The order of the images is of no account, nor is since when
// they have been planned, or which plan was the first with an inquiry.
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
	// A plan that says nothing in one of these fields hashes as it did before there
	// was that field.
	return hashJSON(struct {
		ClusterUID types.UID               `json:"clusterUID"`
		Policy     map[string]string       `json:"policy,omitempty"`
		Images     []v1alpha1.PlannedImage `json:"images,omitempty"`
		Kept       []v1alpha1.KeptImage    `json:"kept,omitempty"`
		Retired    []v1alpha1.RetiredImage `json:"retired,omitempty"`
		Inquiries  []types.UID             `json:"inquiries,omitempty"`
		Prunes     []v1alpha1.PlannedPrune `json:"prunes,omitempty"`
	}{p.ClusterUID, p.Policy, images, sortedByName(p.Kept, keptKey), sortedByName(p.Retired, retiredKey), inquiries, sortedByName(p.Prunes, pruneKey)})
}

// HashPolicy is the hash of a policy. A key that has its default counts as one
// that is absent, so that a later version with another key hashes alike.
func HashPolicy(data map[string]string) string {
	defaults := apipolicy.Default().ToData()
	set := maps.Clone(data)
	maps.DeleteFunc(set, func(key, text string) bool { return defaults[key] == text })
	return hashJSON(set)
}

// hashJSON rests on JSON of maps being sorted by key.
func hashJSON(content any) string {
	text, err := json.Marshal(content)
	if err != nil {
		panic(err) // plain types of our own
	}
	sum := sha256.Sum256(text)
	return hex.EncodeToString(sum[:16])
}
