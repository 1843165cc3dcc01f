package dashboard

import (
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// An address that fails waits, and others do not.
func TestFailedSignInsOfAnAddressAreLimited(t *testing.T) {
	var l signInLimit
	const thief, anna = "192.0.2.1:1000", "192.0.2.2:1000"
	now := testTime
	for i := range failuresOfAddress {
		_, wait := l.beginAttempt(fmt.Sprintf("192.0.2.1:%d", 1000+i), now)
		require.Zero(t, wait, "attempt %d, from another port each", i)
	}
	_, wait := l.beginAttempt(thief, now)
	require.Equal(t, forgiveAddressEvery, wait)
	_, again := l.beginAttempt(thief, now.Add(wait/2))
	require.Equal(t, wait/2, again, "an attempt that was refused does not count")
	succeeded, wait := l.beginAttempt(anna, now)
	require.Zero(t, wait)
	succeeded()
	_, wait = l.beginAttempt(thief, now.Add(forgiveAddressEvery))
	require.Zero(t, wait, "one attempt for the time that passed")
	_, wait = l.beginAttempt(thief, now.Add(forgiveAddressEvery))
	require.Equal(t, forgiveAddressEvery, wait)
}

// Who signs in takes no attempt from others behind the same ingress.
func TestSignInsThatSucceedAreNotLimited(t *testing.T) {
	var l signInLimit
	for i := range 10 * failuresOfAll {
		succeeded, wait := l.beginAttempt("192.0.2.1:1000", testTime)
		require.Zero(t, wait, "sign-in %d", i)
		succeeded()
	}
}

// Many addresses together fail no oftener than the limit of all allows, and memory is bounded.
func TestFailedSignInsOfAllAreLimited(t *testing.T) {
	var l signInLimit
	address := func(i int) string { return fmt.Sprintf("[2001:db8:%x::1]:1000", i) }
	for i := range failuresOfAll {
		_, wait := l.beginAttempt(address(i), testTime)
		require.Zero(t, wait)
	}
	_, wait := l.beginAttempt(address(failuresOfAll), testTime)
	require.Equal(t, forgiveAllEvery, wait)
	accepted := 0
	for i := range 3 * maxAddresses {
		if _, wait := l.beginAttempt(address(i), testTime.Add(time.Duration(i)*time.Millisecond)); wait == 0 {
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
