package ui

import (
	"context"
	"sync"
)

// How many requests to the API server run at a time, of one caller and of all: each holds an
// answer of up to maxAnswerBytes in memory.
const (
	requestsOfACaller = 4
	requestsOfAll     = 32
)

// requestLimit bounds requests that run at a time. Others wait for their turn.
type requestLimit struct {
	all     chan struct{}
	mu      sync.Mutex
	callers map[string]*callerSlots
}

// callerSlots are those of one caller, for as long as it has requests.
type callerSlots struct {
	slots    chan struct{}
	requests int
}

func newRequestLimit() *requestLimit {
	return &requestLimit{all: make(chan struct{}, requestsOfAll), callers: map[string]*callerSlots{}}
}

// acquire waits for a slot, and returns how to release it. Invariant: who waits holds no slot of
// all, so that one caller does not keep others waiting.
func (l *requestLimit) acquire(ctx context.Context, caller string) (release func(), err error) {
	of := l.enterQueue(caller)
	select {
	case of.slots <- struct{}{}:
	case <-ctx.Done():
		l.leaveQueue(caller, of)
		return nil, ctx.Err()
	}
	select {
	case l.all <- struct{}{}:
	case <-ctx.Done():
		<-of.slots
		l.leaveQueue(caller, of)
		return nil, ctx.Err()
	}
	return func() {
		<-l.all
		<-of.slots
		l.leaveQueue(caller, of)
	}, nil
}

func (l *requestLimit) enterQueue(caller string) *callerSlots {
	l.mu.Lock()
	defer l.mu.Unlock()
	of := l.callers[caller]
	if of == nil {
		of = &callerSlots{slots: make(chan struct{}, requestsOfACaller)}
		l.callers[caller] = of
	}
	of.requests++
	return of
}

func (l *requestLimit) leaveQueue(caller string, of *callerSlots) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if of.requests--; of.requests == 0 {
		delete(l.callers, caller)
	}
}
