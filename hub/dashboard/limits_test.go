package dashboard

import (
	"crypto/sha256"
	"fmt"
	"strconv"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func tokenOf(i int) [sha256.Size]byte { return sha256.Sum256([]byte(strconv.Itoa(i))) }

// The requests of a page with one token that is being judged are one attempt.
func TestRequestsOfATokenAreOneAttempt(t *testing.T) {
	var l signInLimit
	end, wait := l.beginAttempt("192.0.2.1:1000", tokenOf(1), testTime)
	require.Zero(t, wait)
	for range 10 * failuresOfAll {
		endOther, wait := l.beginAttempt("192.0.2.1:1000", tokenOf(1), testTime)
		require.Zero(t, wait)
		endOther(true)
	}
	assert.InDelta(t, 1, l.all.count, 0)
	end(false)
	assert.Empty(t, l.underway)
	assert.InDelta(t, 1, l.all.count, 0, "it failed once")
}

// An address that fails waits, and others do not.
func TestFailedSignInsOfAnAddressAreLimited(t *testing.T) {
	var l signInLimit
	const thief, anna = "192.0.2.1:1000", "192.0.2.2:1000"
	now := testTime
	for i := range failuresOfAddress {
		end, wait := l.beginAttempt(fmt.Sprintf("192.0.2.1:%d", 1000+i), tokenOf(i), now)
		require.Zero(t, wait, "attempt %d, from another port each", i)
		end(false)
	}
	_, wait := l.beginAttempt(thief, tokenOf(-1), now)
	require.Equal(t, forgiveAddressEvery, wait)
	_, again := l.beginAttempt(thief, tokenOf(-1), now.Add(wait/2))
	require.Equal(t, wait/2, again, "an attempt that was refused does not count")
	end, wait := l.beginAttempt(anna, tokenOf(-2), now)
	require.Zero(t, wait)
	end(true)
	end, wait = l.beginAttempt(thief, tokenOf(-1), now.Add(forgiveAddressEvery))
	require.Zero(t, wait, "one attempt for the time that passed")
	end(false)
	_, wait = l.beginAttempt(thief, tokenOf(-1), now.Add(forgiveAddressEvery))
	require.Equal(t, forgiveAddressEvery, wait)
}

// Who signs in takes no attempt from others behind the same ingress.
func TestSignInsThatSucceedAreNotLimited(t *testing.T) {
	var l signInLimit
	for i := range 10 * failuresOfAll {
		end, wait := l.beginAttempt("192.0.2.1:1000", tokenOf(i), testTime)
		require.Zero(t, wait, "sign-in %d", i)
		end(true)
	}
}

// Many addresses together fail no oftener than the limit of all allows, and memory is bounded.
func TestFailedSignInsOfAllAreLimited(t *testing.T) {
	var l signInLimit
	address := func(i int) string { return fmt.Sprintf("[2001:db8:%x::1]:1000", i) }
	for i := range failuresOfAll {
		end, wait := l.beginAttempt(address(i), tokenOf(i), testTime)
		require.Zero(t, wait)
		end(false)
	}
	_, wait := l.beginAttempt(address(failuresOfAll), tokenOf(failuresOfAll), testTime)
	require.Equal(t, forgiveAllEvery, wait)
	accepted := 0
	for i := range 3 * maxAddresses {
		if end, wait := l.beginAttempt(address(i), tokenOf(i), testTime.Add(time.Duration(i)*time.Millisecond)); wait == 0 {
			end(false)
			accepted++
		}
		require.LessOrEqual(t, len(l.byAddress), maxAddresses)
	}
	assert.LessOrEqual(t, accepted, int(3*maxAddresses*time.Millisecond/forgiveAllEvery)+1)
}

func TestAddressesThatFailTogether(t *testing.T) {
	for _, tt := range []struct {
		a, b string
		same bool
	}{
		{"192.0.2.1:1", "192.0.2.1:2", true},
		{"192.0.2.1:1", "192.0.2.2:1", false},
		{"192.0.2.1:1", "[::ffff:192.0.2.1]:1", true},
		{"[2001:db8::1]:1", "[2001:db8::2]:1", true},
		{"[2001:db8::1]:1", "[2001:db8:0:1::1]:1", false},
		{"[fe80::1%eth0]:1", "[fe80::1%eth1]:1", true},
	} {
		assert.Equal(t, tt.same, addressOf(tt.a) == addressOf(tt.b), "%s %s", tt.a, tt.b)
		assert.NotZero(t, addressOf(tt.a), tt.a)
	}
}
