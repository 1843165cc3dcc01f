package dashboard

import (
	"crypto/sha256"
	"net/netip"
	"sync"
	"time"
)

// Limits of failed sign-ins. Behind an ingress, all people have its address.
const (
	failuresOfAddress = 20
	failuresOfAll     = 200
	// Each of these takes one failure off.
	forgiveAddressEvery = 6 * time.Second
	forgiveAllEvery     = 600 * time.Millisecond
	// maxAddresses are remembered. When more fail, all are forgotten, and failuresOfAll holds.
	maxAddresses = 4096
)

// failures counts attempts that failed or are under way, of which time takes some off.
type failures struct {
	count float64
	at    time.Time
}

// wait returns how long until another attempt is allowed; 0 for now.
func (f *failures) wait(now time.Time, most int, every time.Duration) time.Duration {
	if passed := now.Sub(f.at); passed > 0 {
		f.count, f.at = max(0, f.count-float64(passed)/float64(every)), now
	}
	return max(0, time.Duration((f.count+1-float64(most))*float64(every)))
}

// signInLimit bounds failed sign-ins, of one address and of all. Its zero value is ready for use.
type signInLimit struct {
	mu        sync.Mutex
	all       failures
	byAddress map[netip.Prefix]*failures
	// underway are the tokens that are being judged. Each counts as failed, so that they are
	// as many as may fail.
	underway map[[sha256.Size]byte]struct{}
}

// beginAttempt counts an attempt as failed until end says that it succeeded. Requests with a token
// that is being judged are the same attempt: a page sends many at a time. wait is how long the
// address has to wait; 0 where it may try.
func (l *signInLimit) beginAttempt(remote string, token [sha256.Size]byte, now time.Time) (end func(succeeded bool), wait time.Duration) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if _, judged := l.underway[token]; judged {
		return func(bool) {}, 0
	}
	address := addressOf(remote)
	own := l.byAddress[address]
	if own == nil {
		if l.byAddress == nil || len(l.byAddress) >= maxAddresses {
			l.byAddress = map[netip.Prefix]*failures{}
		}
		own = &failures{at: now}
		l.byAddress[address] = own
	}
	wait = max(own.wait(now, failuresOfAddress, forgiveAddressEvery), l.all.wait(now, failuresOfAll, forgiveAllEvery))
	if wait > 0 {
		return nil, wait
	}
	own.count++
	l.all.count++
	if l.underway == nil {
		l.underway = map[[sha256.Size]byte]struct{}{}
	}
	l.underway[token] = struct{}{}
	return func(succeeded bool) {
		l.mu.Lock()
		defer l.mu.Unlock()
		delete(l.underway, token)
		if succeeded {
			own.count, l.all.count = max(0, own.count-1), max(0, l.all.count-1)
		}
	}, 0
}

// addressOf returns who fails together: an address, or the /64 that one customer has of IPv6.
func addressOf(remote string) netip.Prefix {
	from, err := netip.ParseAddrPort(remote)
	if err != nil {
		return netip.Prefix{}
	}
	address := from.Addr().Unmap().WithZone("")
	bits := address.BitLen()
	if address.Is6() {
		bits = 64
	}
	prefix, _ := address.Prefix(bits) // the bits are valid
	return prefix
}
