package budget

import (
	"encoding/binary"
	"hash/maphash"
	"maps"
	"slices"
	"time"
)

// worldKey is a hash of 128 bits: millions of worlds do not share one.
type worldKey [2]uint64

var keySeeds = [2]maphash.Seed{maphash.MakeSeed(), maphash.MakeSeed()}

// stateKey distinguishes worlds with different futures.
func (w *world) stateKey() worldKey {
	b := make([]byte, 0, 1024)
	num := func(ns ...int) {
		for _, n := range ns {
			b = binary.AppendVarint(b, int64(n))
		}
	}
	text := func(s string) {
		num(len(s))
		b = append(b, s...)
	}
	at := func(t time.Time) {
		if t.IsZero() {
			num(0)
			return
		}
		num(1, int(t.Sub(epoch)/time.Second))
	}
	rep := func(r reported) {
		num(r.cluster, r.seq, r.boot, r.n, r.slots, r.ack, r.gives, boolToInt(r.plan.limited))
	}
	sto := func(s *stored) {
		if s == nil {
			num(0)
			return
		}
		num(1, s.cluster, s.rv, s.seq, s.slots, s.boot, s.n, s.possible, s.left, s.ended, int(s.lasts/time.Second))
	}
	account := func(acc *account) {
		num(int(acc.facts.ReportSequence), int(acc.facts.Slots), int(acc.lastGrant.Sequence), int(acc.plannedSafe), int(acc.maxSafe), boolToInt(acc.unacknowledged != nil), int(acc.usage/1_000_000), int(acc.turnSequence), boolToInt(acc.wasRequesting), boolToInt(acc.reportMissing), boolToInt(acc.reportRead))
		at(acc.reportedAt)
		at(acc.requestedAt)
		at(acc.learnedUntil)
		at(acc.turnState.turnUntil)
		text(acc.requestNonce)
		num(len(acc.grants))
		for _, g := range acc.grants {
			num(int(g.Sequence), int(g.Slots))
			at(g.expiresAt)
			text(g.Nonce)
		}
		num(len(acc.ended))
		for _, e := range acc.ended {
			num(int(e.Slots), boolToInt(e.allSources))
			at(e.endedAt)
		}
		num(boolToInt(acc.grantAhead), boolToInt(acc.grantInUse), boolToInt(acc.given))
	}
	num(w.lies, w.liedAt, w.restores, boolToInt(w.quarantined), boolToInt(w.writtenOff), int(w.restored/time.Second))
	text(w.excess)
	for _, name := range members {
		record := w.hub.accountant.excess[name]
		at(record.endsAt)
		at(record.witnessUntil)
		num(boolToInt(record.afterRestore))
	}
	at(w.hub.accountant.restoredUntil)
	num(w.now, w.reboots, w.failovers, boolToInt(w.gone), w.setBack, w.ownSetBack, boolToInt(w.isAway), boolToInt(w.wasAway))
	text(w.departed)
	agent := func(a *agent) {
		num(a.cluster, a.boot, a.n, a.sent[0], a.sent[1], a.seq, a.ack, a.gives, a.until, boolToInt(a.plan.limited))
		num(len(a.starts))
		num(a.starts...)
	}
	num(boolToInt(w.other != nil))
	if w.other != nil {
		agent(w.other)
	}
	at(w.hub.accountant.allocatedAt)
	for i := range w.agents {
		a := &w.agents[i]
		agent(a)
		rep(a.written[0])
		rep(a.written[1])
		rep(w.hub.seen[i])
		sto(&w.flights[i])
		sto(&w.grants[i])
		sto(w.hub.pendingWrites[i])
		sto(w.deposedWrites[i])
		num(boolToInt(w.hub.fenced[i]), boolToInt(w.hub.read[i]), w.hub.rvs[i])
		acc := w.hub.accountant.accounts[members[i]]
		num(boolToInt(acc != nil))
		if acc != nil {
			account(acc)
		}
	}
	for _, name := range slices.Sorted(maps.Keys(w.hub.accountant.departed)) {
		text(name)
		account(w.hub.accountant.departed[name])
	}
	return worldKey{maphash.Bytes(keySeeds[0], b), maphash.Bytes(keySeeds[1], b)}
}

func boolToInt(v bool) int {
	if v {
		return 1
	}
	return 0
}
