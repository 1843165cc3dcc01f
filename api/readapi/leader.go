// Package readapi is what the hub and its clients share of the read API: how to find the
// elected replica and to know that it is the one, its answers, and a Client that asks for
// them.
//
// Invariant: unknown is never zero. What is not known of a member is omitted or null, and a
// sum says how many members are missing in it.
package readapi

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

// Annotations of a replica's Lease.
const (
	annotationProcess     = "pelotech.ot/process"
	annotationReadAPI     = "pelotech.ot/read-api"
	annotationReadAPICert = "pelotech.ot/read-api-cert"
	annotationHubVersion  = "pelotech.ot/hub-version"
)

const (
	// ElectionLease is the name of the Lease by which a replica is elected.
	ElectionLease = "ot-hub"
	// LeasePrefix and the name of a replica form the name of its Lease.
	LeasePrefix = "ot-hub-replica-"
)

// ReplicaAddress is where a replica serves its read API.
type ReplicaAddress struct {
	// Replica is the name of the replica: by default its Pod's.
	Replica string
	// Process is the holder identity of the election's Lease while this replica is elected.
	Process string
	// URL without a path; empty where the replica cannot be forwarded to.
	URL string
	// Fingerprint of its serving certificate; empty for plain text.
	Fingerprint string
	// Version of its program; empty where it is older than this annotation.
	Version string
}

// NewReplicaAddress returns where a process serves, given its advertised host, the address
// that its server is bound to, and the fingerprint of its certificate, empty for plain
// text. Without an advertised host or a fixed port it has no URL.
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

// Annotations returns the address as annotations of the replica's Lease.
func (s ReplicaAddress) Annotations() map[string]string {
	annotations := map[string]string{annotationProcess: s.Process}
	if s.URL != "" {
		annotations[annotationReadAPI] = s.URL
	}
	if s.Fingerprint != "" {
		annotations[annotationReadAPICert] = s.Fingerprint
	}
	if s.Version != "" {
		annotations[annotationHubVersion] = s.Version
	}
	return annotations
}

func addressFromLease(lease *coordinationv1.Lease, replica string) ReplicaAddress {
	a := lease.Annotations
	return ReplicaAddress{
		Replica: replica, Process: a[annotationProcess], URL: a[annotationReadAPI], Fingerprint: a[annotationReadAPICert],
		Version: a[annotationHubVersion],
	}
}

// Replicas returns what the Leases of a hub's namespace say of its replicas, and the process
// that is elected.
func Replicas(leases []coordinationv1.Lease) (replicas []ReplicaAddress, elected string) {
	for i := range leases {
		l := &leases[i]
		if replica, isReplica := strings.CutPrefix(l.Name, LeasePrefix); isReplica {
			replicas = append(replicas, addressFromLease(l, replica))
		}
		if l.Name == ElectionLease && l.Spec.HolderIdentity != nil {
			elected = *l.Spec.HolderIdentity
		}
	}
	return replicas, elected
}

const (
	// leaderCacheTTL is how long a result of Locate is reused.
	leaderCacheTTL = time.Second
	// listTimeout bounds the list of Leases.
	listTimeout = 5 * time.Second
)

// Reasons why there is no replica to forward to.
var (
	// ErrNoLeader: no replica is elected at the moment.
	ErrNoLeader = errors.New("no replica of the hub is elected")
	// ErrNoReplica: no hub runs in the namespace, and none has.
	ErrNoReplica = errors.New("no replica of a hub has a Lease (" + LeasePrefix + "*)")
	// ErrNoAddress: the elected replica does not say where it serves.
	ErrNoAddress = errors.New("the elected replica of the hub publishes no address (--advertise-address)")
	// ErrSeveralAddresses: callers' credentials go to the address in the Lease. Creating another Lease must not
	// redirect them.
	ErrSeveralAddresses = errors.New("several Leases publish an address of the elected replica of the hub: delete those that no replica created")
)

// LeaderLocator finds the address of the elected replica.
type LeaderLocator struct {
	// Live reads the Leases.
	Live client.Reader
	// Namespace of the Leases.
	Namespace string

	mu        sync.Mutex
	cached    ReplicaAddress
	cachedErr error
	cachedAt  time.Time
}

// Locate returns the address of the elected replica.
func (e *LeaderLocator) Locate(ctx context.Context) (ReplicaAddress, error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.cachedAt.IsZero() || time.Since(e.cachedAt) >= leaderCacheTTL {
		e.cached, e.cachedErr = e.listLeases(ctx)
		e.cachedAt = time.Now()
	}
	return e.cached, e.cachedErr
}

// Invalidate drops the cached result.
func (e *LeaderLocator) Invalidate() {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.cachedAt = time.Time{}
}

// listLeases finds the leader in one list: the replicas' Leases are as recent as that of
// the election.
func (e *LeaderLocator) listLeases(ctx context.Context) (ReplicaAddress, error) {
	// Other callers wait for this result: one cancelled request must not end it.
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), listTimeout)
	defer cancel()
	var leases coordinationv1.LeaseList
	if err := e.Live.List(ctx, &leases, client.InNamespace(e.Namespace)); err != nil {
		return ReplicaAddress{}, fmt.Errorf("finding the elected replica of the hub: %w", err)
	}
	replicas, holder := Replicas(leases.Items)
	if holder == "" && len(replicas) == 0 {
		return ReplicaAddress{}, ErrNoReplica
	}
	if holder == "" {
		return ReplicaAddress{}, ErrNoLeader
	}
	var found []ReplicaAddress
	for _, r := range replicas {
		if r.Process == holder {
			found = append(found, r)
		}
	}
	switch {
	case len(found) > 1:
		return ReplicaAddress{}, ErrSeveralAddresses
	case len(found) == 0 || found[0].URL == "":
		return ReplicaAddress{}, ErrNoAddress
	}
	return found[0], nil
}
