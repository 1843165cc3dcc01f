package inventory

import (
	"math"
	"slices"
	"strings"
	"unique"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/pelotech/ot-fleet/api/readapi"
	"github.com/pelotech/ot-fleet/api/v1alpha1"
)

type indexPage struct {
	sequence      int64
	counted       bool
	groups        []*indexGroup
	sum           tally
	failingImages []v1alpha1.ImageSummary // at most maxFailingImages
	// unsourced images are planned and absent, and in no group.
	unsourced []entry
}

// indexGroup is what one page has of one source.
type indexGroup struct {
	source  unique.Handle[string]
	entries []entry
	sum     tally
}

// entry is an image of a member. It is small: there are members × images of them.
type entry struct {
	namespace, name   unique.Handle[string]
	reason            unique.Handle[string]
	unreferencedSince int64 // Unix seconds; 0 if unknown
	bytes             int64
	references        int32
	phaseIndex        uint8 // index in phases
	flags             uint8
}

// PhaseUnknown is the phase of an image without a phase, or with one of a later agent
// that this hub does not know.
const PhaseUnknown v1alpha1.Phase = "Unknown"

// phases that are counted. The first is of an image that is planned and absent, the
// second of all others that are not listed.
var phases = [...]v1alpha1.Phase{
	phaseAbsent: "", 1: PhaseUnknown, v1alpha1.PhaseQueued, v1alpha1.PhaseSyncing, v1alpha1.PhaseSucceeded, v1alpha1.PhaseFailed,
	v1alpha1.PhasePrunePending, v1alpha1.PhaseTerminating, v1alpha1.PhaseDeleting,
}

const phaseAbsent = 0

func phaseIndexOf(img *v1alpha1.ReportedImage) uint8 {
	if img.UID == "" {
		return phaseAbsent
	}
	return uint8(max(1, slices.Index(phases[:], img.Phase)))
}

// tally sums up entries.
type tally struct {
	phases       [len(phases)]int32
	entries      int32
	unreferenced int32
	references   int64
	bytes        byteSum
}

// byteSum is a sum that is exact whatever members report: an int64 overflows with the images of two
// members that lie, and what they added could not be subtracted from one that saturates.
type byteSum struct{ high, low int64 }

const lowBits = 32

func newByteSum(n int64) byteSum { return byteSum{high: n >> lowBits, low: n & (1<<lowBits - 1)} }

func (b *byteSum) addScaled(other byteSum, sign int64) {
	b.high += sign * other.high
	b.low += sign * other.low
}

// total returns the sum, or the largest number where that is larger.
func (b *byteSum) total() int64 {
	high := b.high + b.low>>lowBits
	if high > math.MaxInt64>>lowBits {
		return math.MaxInt64
	}
	return high<<lowBits | b.low&(1<<lowBits-1)
}

func (t *tally) addScaled(other *tally, sign int32) {
	for i := range t.phases {
		t.phases[i] += sign * other.phases[i]
	}
	t.entries += sign * other.entries
	t.unreferenced += sign * other.unreferenced
	t.references += int64(sign) * other.references
	t.bytes.addScaled(other.bytes, int64(sign))
}

func (t *tally) addEntry(e *entry) {
	t.phases[e.phaseIndex]++
	t.entries++
	t.references += int64(e.references)
	t.bytes.addScaled(newByteSum(e.bytes), 1)
	if e.references == 0 && e.phaseIndex != phaseAbsent {
		t.unreferenced++
	}
}

// maxFailingImages is how many failing images a member's status names.
const maxFailingImages = 5

// newIndexPage returns a page with its images by source, which redact redacts.
func newIndexPage(sequence int64, images []v1alpha1.ReportedImage, redact func(source string) string) *indexPage {
	p := &indexPage{sequence: sequence}
	groups := map[string]*indexGroup{}
	for i := range images {
		img := &images[i]
		if img.IsPruned() {
			continue
		}
		e := newEntry(img)
		p.sum.addEntry(&e)
		if phases[e.phaseIndex] == v1alpha1.PhaseFailed {
			p.failingImages = append(p.failingImages, v1alpha1.ImageSummary{
				Namespace: img.Namespace, Name: img.Name, Reason: v1alpha1.Reason(v1alpha1.SanitizeText(string(img.Reason), 64)), Message: v1alpha1.SanitizeText(img.Message, 256),
			})
		}
		if img.Source == "" {
			p.unsourced = append(p.unsourced, e)
			continue // a planned image that is absent; its source is unknown
		}
		source := redact(img.Source) // agents up to 0.2 report the whole URL
		g := groups[source]
		if g == nil {
			g = &indexGroup{source: unique.Make(source)}
			groups[source] = g
			p.groups = append(p.groups, g)
		}
		g.entries = append(g.entries, e)
		g.sum.addEntry(&e)
	}
	for _, g := range p.groups {
		g.entries = slices.Clip(g.entries)
	}
	p.failingImages = truncateFailing(p.failingImages)
	return p
}

func truncateFailing(failing []v1alpha1.ImageSummary) []v1alpha1.ImageSummary {
	slices.SortFunc(failing, func(a, b v1alpha1.ImageSummary) int {
		if c := strings.Compare(a.Namespace, b.Namespace); c != 0 {
			return c
		}
		return strings.Compare(a.Name, b.Name)
	})
	return slices.Clone(failing[:min(len(failing), maxFailingImages)])
}

func newEntry(img *v1alpha1.ReportedImage) entry {
	e := entry{
		namespace: unique.Make(img.Namespace), name: unique.Make(img.Name), reason: unique.Make(string(img.ReasonOrPlan())),
		bytes: img.Bytes, references: img.References,
		phaseIndex: phaseIndexOf(img), flags: flagsOf(img),
	}
	if img.UnreferencedSince != nil {
		e.unreferencedSince = img.UnreferencedSince.Unix()
	}
	return e
}

// unreferencedSince is the time at which the last of some entries lost its last
// reference. There is none while one has a reference, or if one does not know the time.
type unreferencedSince struct {
	latest  int64
	unknown bool
}

func (u *unreferencedSince) observe(groups []*indexGroup) {
	for _, g := range groups {
		for i := range g.entries {
			e := &g.entries[i]
			if e.references > 0 || e.unreferencedSince == 0 && e.phaseIndex != phaseAbsent {
				u.unknown = true
			}
			u.latest = max(u.latest, e.unreferencedSince)
		}
	}
}

func (u *unreferencedSince) timestamp() *metav1.Time {
	if u.unknown {
		return nil
	}
	return timeFromUnix(u.latest)
}

func timeFromUnix(seconds int64) *metav1.Time {
	if seconds == 0 {
		return nil
	}
	t := metav1.Unix(seconds, 0)
	t = metav1.NewTime(t.UTC())
	return &t
}

func (t *tally) toCounts() readapi.Counts {
	c := readapi.Counts{
		Images: int(t.entries - t.phases[phaseAbsent]), Absent: int(t.phases[phaseAbsent]),
		References: t.references, Unreferenced: int(t.unreferenced), Bytes: t.bytes.total(),
	}
	for i, n := range t.phases {
		if i == phaseAbsent || n == 0 {
			continue
		}
		if c.Phases == nil {
			c.Phases = map[v1alpha1.Phase]int{}
		}
		c.Phases[phases[i]] = int(n)
	}
	return c
}

func (e *entry) toImageEntry() readapi.ImageEntry {
	return readapi.ImageEntry{
		Namespace: e.namespace.Value(), Name: e.name.Value(),
		Phase: phases[e.phaseIndex], Reason: v1alpha1.Reason(e.reason.Value()),
		References: e.references, UnreferencedSince: timeFromUnix(e.unreferencedSince), Bytes: e.bytes,
	}
}
