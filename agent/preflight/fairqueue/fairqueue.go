// Package fairqueue decides which request runs next: round robin over namespaces, then
// over the hosts of a namespace, first in, first out for each host. It is pure.
package fairqueue

import "slices"

// Limits bound how many requests run at a time.
type Limits struct {
	Total, PerNamespace, PerHost int
}

// Request is what waits or runs.
type Request struct {
	ID        uint64
	Namespace string
	Host      string
}

// Queue holds the requests that wait, and counts those that run. It is not safe for
// concurrent use.
//
// Invariant: between the moment at which a request could run and its start, each other
// namespace starts at most one request, however many of its requests wait. The same
// holds among the hosts of a namespace.
type Queue struct {
	limits Limits
	// namespaces that have waiting requests, in the order of their turns.
	namespaces []*namespace
	waiting    map[uint64]Request
	running    map[uint64]Request

	runningByNamespace, runningByHost map[string]int
}

type namespace struct {
	name string
	// hosts that have waiting requests, in the order of their turns.
	hosts []*host
}

type host struct {
	name string
	ids  []uint64
}

// New returns an empty queue.
func New(limits Limits) *Queue {
	return &Queue{
		limits: limits, waiting: map[uint64]Request{}, running: map[uint64]Request{},
		runningByNamespace: map[string]int{}, runningByHost: map[string]int{},
	}
}

// Add lets a request wait.
func (q *Queue) Add(r Request) {
	i := q.indexOfNamespace(r.Namespace)
	if i < 0 {
		i = len(q.namespaces)
		q.namespaces = append(q.namespaces, &namespace{name: r.Namespace})
	}
	n := q.namespaces[i]
	j := n.indexOfHost(r.Host)
	if j < 0 {
		j = len(n.hosts)
		n.hosts = append(n.hosts, &host{name: r.Host})
	}
	n.hosts[j].ids = append(n.hosts[j].ids, r.ID)
	q.waiting[r.ID] = r
}

// Remove drops a request that waits. It does nothing for any other.
func (q *Queue) Remove(id uint64) {
	r, ok := q.waiting[id]
	if !ok {
		return
	}
	delete(q.waiting, id)
	i := q.indexOfNamespace(r.Namespace)
	n := q.namespaces[i]
	j := n.indexOfHost(r.Host)
	n.hosts[j].ids = slices.DeleteFunc(n.hosts[j].ids, func(other uint64) bool { return other == id })
	if len(n.hosts[j].ids) == 0 {
		n.hosts = slices.Delete(n.hosts, j, j+1)
	}
	if len(n.hosts) == 0 {
		q.namespaces = slices.Delete(q.namespaces, i, i+1)
	}
}

// Start takes the request whose turn it is, and counts it as running until Finish.
func (q *Queue) Start() (Request, bool) {
	if len(q.running) >= q.limits.Total {
		return Request{}, false
	}
	for i, n := range q.namespaces {
		if q.runningByNamespace[n.name] >= q.limits.PerNamespace {
			continue
		}
		for j, h := range n.hosts {
			if q.runningByHost[h.name] >= q.limits.PerHost {
				continue
			}
			r := q.waiting[h.ids[0]]
			// What had its turn goes to the end; a request removed from there is gone.
			n.hosts = append(slices.Delete(n.hosts, j, j+1), h)
			q.namespaces = append(slices.Delete(q.namespaces, i, i+1), n)
			q.Remove(r.ID)
			q.running[r.ID] = r
			q.runningByNamespace[r.Namespace]++
			q.runningByHost[r.Host]++
			return r, true
		}
	}
	return Request{}, false
}

// Finish ends a request that runs.
func (q *Queue) Finish(id uint64) {
	r, ok := q.running[id]
	if !ok {
		return
	}
	delete(q.running, id)
	decrement(q.runningByNamespace, r.Namespace)
	decrement(q.runningByHost, r.Host)
}

// IsWaiting reports whether a request waits.
func (q *Queue) IsWaiting(id uint64) bool {
	_, ok := q.waiting[id]
	return ok
}

// WouldWait reports whether a request of a namespace for a host would have to wait.
func (q *Queue) WouldWait(namespace, host string) bool {
	return len(q.running) >= q.limits.Total || q.runningByNamespace[namespace] >= q.limits.PerNamespace || q.runningByHost[host] >= q.limits.PerHost
}

// Len returns how many requests wait and run.
func (q *Queue) Len() (waiting, running int) { return len(q.waiting), len(q.running) }

func (q *Queue) indexOfNamespace(name string) int {
	return slices.IndexFunc(q.namespaces, func(n *namespace) bool { return n.name == name })
}

func (n *namespace) indexOfHost(name string) int {
	return slices.IndexFunc(n.hosts, func(h *host) bool { return h.name == name })
}

func decrement(counts map[string]int, key string) {
	if counts[key]--; counts[key] == 0 {
		delete(counts, key)
	}
}
