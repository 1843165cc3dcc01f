package answers

import (
	"cmp"
	"slices"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/pelotech/ot-fleet/api/eta"
	"github.com/pelotech/ot-fleet/api/readapi"
	"github.com/pelotech/ot-fleet/api/v1alpha1"
	"github.com/pelotech/ot-fleet/hub/inventory"
)

// TransferQuery selects Transfers. Empty fields do not limit them.
type TransferQuery struct {
	State, Cluster, Source string
	// Search is a part of a cluster's name, or of namespace/name.
	Search string
	// Sort is one of readapi.TransferOrders.
	Sort string
	// Offset is how many entries of each list are left out, and Limit how many are returned.
	Offset, Limit int
}

// Moving is what Transfers are made of.
type Moving struct {
	Members    []v1alpha1.MemberCluster
	Activities map[string]inventory.Activity
	Clocks     map[string]Clock
	// Grants by member.
	Grants map[string]*v1alpha1.TransferGrant
	Policy PolicyInForce
	// References returns how many machines need an image; false if that is unknown.
	References func(member, namespace, name string) (int32, bool)
}

// ListTransfers returns the imports that run and the images that wait. Quarantined members
// do not count.
func ListTransfers(f *Moving, q TransferQuery) readapi.Transfers {
	t := readapi.Transfers{Running: []readapi.Transfer{}, Queued: []readapi.Transfer{}}
	for i := range f.Members {
		m := &f.Members[i]
		if m.Spec.Quarantine != nil || q.Cluster != "" && m.Name != q.Cluster {
			continue
		}
		a := f.Activities[m.Name]
		if a.Unknown != "" || a.Reported == nil {
			t.UnknownMembers = append(t.UnknownMembers, readapi.UnknownMember{Member: m.Name, Reason: a.Unknown})
		}
		if a.Reported != nil {
			f.addTransfers(&t, m.Name, a, q)
		}
	}
	t.RunningTotal, t.QueuedTotal, t.UnknownMembersTotal = len(t.Running), len(t.Queued), len(t.UnknownMembers)
	slices.SortFunc(t.UnknownMembers, func(a, b readapi.UnknownMember) int { return cmp.Compare(a.Member, b.Member) })
	t.UnknownMembers = firstOf(t.UnknownMembers, readapi.MaxTransferUnknownMembers)
	for _, list := range []*[]readapi.Transfer{&t.Running, &t.Queued} {
		slices.SortFunc(*list, transferOrder(q.Sort))
		*list = slices.Clip(firstOf((*list)[min(q.Offset, len(*list)):], q.Limit))
		for i := range *list {
			r := &(*list)[i]
			if n, known := f.References(r.Cluster, r.Namespace, r.Name); known {
				r.References = &n
			}
		}
	}
	return t
}

func (q *TransferQuery) matches(cluster, namespace, name, source string) bool {
	text := strings.ToLower(cluster + " " + namespace + "/" + name)
	return (q.Source == "" || cmp.Or(source, v1alpha1.SourceOther) == q.Source) && strings.Contains(text, strings.ToLower(q.Search))
}

func (f *Moving) addTransfers(t *readapi.Transfers, member string, a inventory.Activity, q TransferQuery) {
	clock := f.Clocks[member]
	s := clock.snapshot(a.Reported, f.Grants[member], f.Policy)
	for i := range a.Reported.Active {
		if r := &a.Reported.Active[i]; q.State != readapi.TransferQueued && q.matches(member, r.Namespace, r.Name, r.Source) {
			running := newRunning(member, r, clock)
			running.Slow = eta.IsSlow(a.Reported, r)
			running.Unknown, running.Expected = a.Unknown, readapi.NewEstimate(believed(a, s.Active(i)))
			t.Running = append(t.Running, running)
		}
	}
	if q.State == readapi.TransferRunning {
		return
	}
	for i := range a.Reported.Head {
		if r := &a.Reported.Head[i]; q.matches(member, r.Namespace, r.Name, r.Source) {
			queued := newQueued(member, r, clock)
			queued.Position, queued.Unknown, queued.Expected = i+1, a.Unknown, readapi.NewEstimate(believed(a, s.Queued(i)))
			t.Queued = append(t.Queued, queued)
		}
	}
	t.Unlisted += max(0, int(a.Reported.Queued)-len(a.Reported.Head))
}

func newRunning(member string, r *v1alpha1.ActiveImport, clock Clock) readapi.Transfer {
	t := readapi.Transfer{
		Cluster: member, Namespace: r.Namespace, Name: r.Name, Source: r.Source, BytesDone: &r.BytesDone, BytesPerSecond: positive(r.BytesPerSecond),
		StartedAt: clock.toHub(&r.StartedAt), Attempt: r.Attempt, MaxAttempts: r.MaxAttempts,
	}
	t.Bytes, t.AtMost = sizeOf(r.BytesTotal, r.AtMostBytes)
	return t
}

func newQueued(member string, r *v1alpha1.QueuedImport, clock Clock) readapi.Transfer {
	t := readapi.Transfer{
		Cluster: member, Namespace: r.Namespace, Name: r.Name, Source: r.Source, QueuedAt: clock.toHub(&r.QueuedAt), NotBefore: clock.toHub(r.NotBefore),
		Priority: r.Priority, Reason: r.Reason,
	}
	t.Bytes, t.AtMost = sizeOf(r.Bytes, r.AtMostBytes)
	return t
}

// positive returns a number that is known; a member writes 0 for one that is not.
func positive(n int64) *int64 {
	if n <= 0 {
		return nil
	}
	return &n
}

func sizeOf(bytes, atMost int64) (size *int64, isBound bool) {
	if bytes > 0 {
		return &bytes, false
	}
	return positive(atMost), atMost > 0
}

// transferOrder compares transfers; those of unknown members are last, then those without
// the value that they are sorted by.
func transferOrder(by string) func(a, b readapi.Transfer) int {
	return func(a, b readapi.Transfer) int {
		byCluster := cmp.Or(cmp.Compare(a.Cluster, b.Cluster), cmp.Compare(a.Namespace, b.Namespace), cmp.Compare(a.Name, b.Name))
		var order int
		switch by {
		case readapi.TransfersByCluster:
			return byCluster
		case readapi.TransfersByImage:
			return cmp.Or(cmp.Compare(a.Namespace, b.Namespace), cmp.Compare(a.Name, b.Name), byCluster)
		case readapi.TransfersByOldest:
			order = readapi.CompareTimes(cmp.Or(a.StartedAt, a.QueuedAt), cmp.Or(b.StartedAt, b.QueuedAt))
		case readapi.TransfersByRate:
			order = cmp.Compare(valueOf(b.BytesPerSecond), valueOf(a.BytesPerSecond))
		default:
			order = readapi.CompareTimes(expectedAt(a.Expected), expectedAt(b.Expected))
		}
		return cmp.Or(compareUnknown(a.Unknown, b.Unknown), order, byCluster)
	}
}

func compareUnknown(a, b string) int {
	switch {
	case (a == "") == (b == ""):
		return 0
	case a == "":
		return -1
	default:
		return 1
	}
}

func expectedAt(e *readapi.Estimate) *metav1.Time {
	if e == nil {
		return nil
	}
	return e.At
}

func valueOf(n *int64) int64 {
	if n == nil {
		return 0
	}
	return *n
}
