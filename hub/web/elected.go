package web

import (
	"context"
	"errors"
	"fmt"
	"net"
	"strings"
	"sync"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// What a replica tells in the annotations of its Lease.
const (
	annotationProcess     = "pelotech.ot/process"
	annotationReadAPI     = "pelotech.ot/read-api"
	annotationReadAPICert = "pelotech.ot/read-api-cert"
)

// ReplicaAddress says where a replica serves its read API.
type ReplicaAddress struct {
	// Process is what the Lease of the elected replica names as its holder, if this
	// is the one.
	Process string
	// URL, without a path; empty where nobody is to be forwarded to it.
	URL string
	// Fingerprint is the Fingerprint of the certificate that it serves with; empty for plain
	// text.
	Fingerprint string
}

// NewReplicaAddress says where a process serves whose server is bound to an address; key is
// empty for plain text. Without an advertised address, or without a fixed port,
// nobody can be forwarded to it.
func NewReplicaAddress(process, advertised, bound, key string) ReplicaAddress {
	s := ReplicaAddress{Process: process}
	_, port, err := net.SplitHostPort(bound)
	if advertised == "" || err != nil || port == "" || port == "0" {
		return s
	}
	scheme := "http"
	if key != "" {
		scheme, s.Fingerprint = "https", key
	}
	s.URL = scheme + "://" + net.JoinHostPort(advertised, port)
	return s
}

// Annotations of the replica's Lease that tell it to the others.
func (s ReplicaAddress) Annotations() map[string]string {
	told := map[string]string{annotationProcess: s.Process}
	if s.URL != "" {
		told[annotationReadAPI] = s.URL
	}
	if s.Fingerprint != "" {
		told[annotationReadAPICert] = s.Fingerprint
	}
	return told
}

// addressFromLease is what a Lease tells.
func addressFromLease(lease *coordinationv1.Lease) ReplicaAddress {
	a := lease.Annotations
	return ReplicaAddress{Process: a[annotationProcess], URL: a[annotationReadAPI], Fingerprint: a[annotationReadAPICert]}
}

const (
	// leaderCacheTTL is for how long one look at the Leases is good enough.
	leaderCacheTTL = time.Second
	// listTimeout ends a look.
	listTimeout = 5 * time.Second
)

// Reasons why nobody is known to forward to.
var (
	errNoLeader  = errors.New("no replica of the hub is elected at the moment")
	errNoAddress = errors.New("the elected replica of the hub does not tell where it serves (--advertise-address)")
	// Callers' credentials go to where the Lease says. Whoever may make Leases beside the
	// hub's, and not change those, is not to have them come to him.
	errSeveralAddresses = errors.New("several Leases tell where the elected replica of the hub serves: delete those that no replica has made")
)

// LeaderLocator finds out which replica is elected and where it serves.
type LeaderLocator struct {
	// Live reads the Leases.
	Live client.Reader
	// Namespace of the Leases; Lease is the name of the one that the elected replica
	// holds.
	Namespace, Lease string
	// Prefix of the names of the replicas' Leases.
	Prefix string

	mu        sync.Mutex
	cached    ReplicaAddress
	cachedErr error
	cachedAt  time.Time
}

// Locate returns where the elected replica serves.
func (e *LeaderLocator) Locate(ctx context.Context) (ReplicaAddress, error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.cachedAt.IsZero() || time.Since(e.cachedAt) >= leaderCacheTTL {
		e.cached, e.cachedErr = e.listLeases(ctx)
		e.cachedAt = time.Now()
	}
	return e.cached, e.cachedErr
}

// Invalidate has the next one look anew: what was found has proved wrong.
func (e *LeaderLocator) Invalidate() {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.cachedAt = time.Time{}
}

// listLeases reads all Leases at once: those of the replicas are as old as the one of the
// election.
func (e *LeaderLocator) listLeases(ctx context.Context) (ReplicaAddress, error) {
	// Others wait for the answer that one caller may not wait for.
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), listTimeout)
	defer cancel()
	var leases coordinationv1.LeaseList
	if err := e.Live.List(ctx, &leases, client.InNamespace(e.Namespace)); err != nil {
		return ReplicaAddress{}, fmt.Errorf("looking for the elected replica of the hub: %w", err)
	}
	holder := ""
	for i := range leases.Items {
		if l := &leases.Items[i]; l.Name == e.Lease && l.Spec.HolderIdentity != nil {
			holder = *l.Spec.HolderIdentity
		}
	}
	if holder == "" {
		return ReplicaAddress{}, errNoLeader
	}
	var found []ReplicaAddress
	for i := range leases.Items {
		lease := &leases.Items[i]
		if s := addressFromLease(lease); strings.HasPrefix(lease.Name, e.Prefix) && s.Process == holder {
			found = append(found, s)
		}
	}
	switch {
	case len(found) > 1:
		return ReplicaAddress{}, errSeveralAddresses
	case len(found) == 0 || found[0].URL == "":
		return ReplicaAddress{}, errNoAddress
	}
	return found[0], nil
}
