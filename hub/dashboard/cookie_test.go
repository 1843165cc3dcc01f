package dashboard

import (
	"bytes"
	"encoding/base64"
	"encoding/json"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
)

var (
	testTime = time.Date(2026, 11, 26, 12, 0, 0, 0, time.UTC)
	keyA     = bytes.Repeat([]byte{1}, keyBytes)
	keyB     = bytes.Repeat([]byte{2}, keyBytes)
)

// randomToken has no regularity that compresses, as the signature of a token.
func randomToken(length int) string {
	const alphabet = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_"
	source := rand.New(rand.NewPCG(uint64(length), 1))
	text := make([]byte, length)
	for i := range text {
		text[i] = alphabet[source.IntN(len(alphabet))]
	}
	return string(text)
}

func requestWith(cookies ...*http.Cookie) *http.Request {
	request := httptest.NewRequest(http.MethodGet, "/auth/me", nil)
	for _, cookie := range cookies {
		if cookie.MaxAge > 0 {
			request.AddCookie(cookie)
		}
	}
	return request
}

func sealed(t *testing.T, k keys, token string, end time.Time) []*http.Cookie {
	t.Helper()
	cookies, err := k.sealToken(token, testTime, end)
	require.NoError(t, err)
	return cookies
}

// Tokens of every length come back whole, in cookies that each browser keeps.
func TestTokensOfEveryLengthFitIntoCookies(t *testing.T) {
	k := keys{current: keyA}
	rapid.Check(t, func(rt *rapid.T) {
		token := randomToken(rapid.IntRange(1, maxTokenBytes).Draw(rt, "length"))
		cookies, err := k.sealToken(token, testTime, testTime.Add(maxSignIn))
		require.NoError(rt, err)
		require.Len(rt, cookies, maxCookies)
		for _, cookie := range cookies {
			require.NoError(rt, cookie.Valid())
			text := cookie.String()
			require.LessOrEqual(rt, len(text), 4096, "browsers drop longer cookies")
			for _, attribute := range []string{"__Host-ot-fleet-", "; Path=/", "; HttpOnly", "; Secure", "; SameSite=Strict"} {
				require.Contains(rt, text, attribute)
			}
			require.Empty(rt, cookie.Domain, "__Host- forbids it")
		}
		got, end, err := k.openToken(requestWith(cookies...), testTime)
		require.NoError(rt, err)
		require.Equal(rt, token, got)
		require.True(rt, end.Equal(testTime.Add(maxSignIn)))
	})
	_, err := k.sealToken(randomToken(maxTokenBytes+1), testTime, testTime.Add(time.Hour))
	require.ErrorIs(t, err, errTokenTooLong)
}

func TestCookies(t *testing.T) {
	k := keys{current: keyA}
	token := randomToken(6000)
	end := testTime.Add(time.Hour)
	whole := func() []*http.Cookie { return sealed(t, k, token, end) }
	other := sealed(t, k, randomToken(6001), end)
	for name, tt := range map[string]struct {
		keys    keys
		cookies []*http.Cookie
		after   time.Duration
		wantErr error
	}{
		"whole":                               {keys: k, cookies: whole()},
		"by the previous key":                 {keys: keys{current: keyB, previous: keyA}, cookies: whole()},
		"by another replica with the same":    {keys: keys{current: bytes.Clone(keyA)}, cookies: whole()},
		"by a key that is gone":               {keys: keys{current: keyB}, cookies: whole(), wantErr: errUnreadable},
		"without keys":                        {cookies: whole(), wantErr: errUnreadable},
		"at its end":                          {keys: k, cookies: whole(), after: time.Hour, wantErr: errCookieEnded},
		"a second before":                     {keys: k, cookies: whole(), after: time.Hour - time.Second},
		"none":                                {keys: k, wantErr: errNoCookie},
		"the first alone":                     {keys: k, cookies: whole()[:1], wantErr: errUnreadable},
		"the second alone":                    {keys: k, cookies: whole()[1:], wantErr: errNoCookie},
		"parts of two":                        {keys: k, cookies: []*http.Cookie{whole()[0], other[1]}, wantErr: errUnreadable},
		"one of another, set by a neighbour":  {keys: k, cookies: append(whole(), whole()[0]), wantErr: errUnreadable},
		"what a longer token left beside it":  {keys: k, cookies: append(sealed(t, k, token, end)[:2], &http.Cookie{Name: cookiePrefix + "2", Value: "old", MaxAge: 1})},
		"a number that is none":               {keys: k, cookies: changed(whole(), func(v string) string { return "x" + v }), wantErr: errUnreadable},
		"a number that is too large":          {keys: k, cookies: changed(whole(), func(v string) string { return "9" + v[1:] }), wantErr: errUnreadable},
		"one part fewer":                      {keys: k, cookies: changed(whole(), func(v string) string { return "1" + v[1:] }), wantErr: errUnreadable},
		"one bit changed":                     {keys: k, cookies: changed(whole(), flipped), wantErr: errUnreadable},
		"cut":                                 {keys: k, cookies: changed(whole(), func(v string) string { return v[:len(v)-4] }), wantErr: errUnreadable},
		"nothing but a number":                {keys: k, cookies: changed(whole(), func(string) string { return "1." }), wantErr: errUnreadable},
		"longer than any that is sealed here": {keys: k, cookies: changed(whole(), func(v string) string { return v + strings.Repeat("A", 100) }), wantErr: errUnreadable},
	} {
		t.Run(name, func(t *testing.T) {
			got, _, err := tt.keys.openToken(requestWith(tt.cookies...), testTime.Add(tt.after))
			if tt.wantErr != nil {
				require.ErrorIs(t, err, tt.wantErr)
				require.Empty(t, got)
				return
			}
			require.NoError(t, err)
			require.Equal(t, token, got)
		})
	}
}

func changed(cookies []*http.Cookie, change func(string) string) []*http.Cookie {
	cookies[0].Value = change(cookies[0].Value)
	return cookies
}

func flipped(value string) string {
	at := len(value) / 2
	c := byte('A')
	if value[at] == c {
		c = 'B'
	}
	return value[:at] + string(c) + value[at+1:]
}

// A shorter token removes the cookies of a longer one, and signing out removes all.
func TestCookiesThatAreNotUsedAreRemoved(t *testing.T) {
	cookies := sealed(t, keys{current: keyA}, randomToken(100), testTime.Add(time.Minute))
	assert.Equal(t, 60, cookies[0].MaxAge)
	for _, cookie := range append(cookies[1:], clearCookies()...) {
		assert.Negative(t, cookie.MaxAge, cookie.Name)
		assert.Empty(t, cookie.Value)
	}
}

// Anything may be in a cookie: it is never a token.
func FuzzOpenToken(f *testing.F) {
	f.Add("1.AAAA", "")
	f.Add("2.", "AAAA")
	f.Add("4.", "")
	f.Fuzz(func(t *testing.T, first, second string) {
		request := httptest.NewRequest(http.MethodGet, "/", nil)
		request.AddCookie(&http.Cookie{Name: cookiePrefix + "0", Value: first})
		request.AddCookie(&http.Cookie{Name: cookiePrefix + "1", Value: second})
		_, _, err := keys{current: keyA}.openToken(request, testTime)
		require.Error(t, err)
	})
}

func jwt(t *testing.T, claims any) string {
	t.Helper()
	text, err := json.Marshal(claims)
	require.NoError(t, err)
	return "e30." + base64.RawURLEncoding.EncodeToString(text) + ".c2ln"
}

func TestSignInEndsWithTheToken(t *testing.T) {
	latest := testTime.Add(maxSignIn)
	for name, tt := range map[string]struct {
		token string
		want  time.Time
	}{
		"with the token":                   {jwt(t, map[string]any{"exp": testTime.Add(time.Hour).Unix()}), testTime.Add(time.Hour)},
		"with a fraction":                  {jwt(t, map[string]any{"exp": float64(testTime.Add(time.Hour).Unix()) + 0.5}), testTime.Add(time.Hour)},
		"after 8 hours":                    {jwt(t, map[string]any{"exp": testTime.Add(24 * time.Hour).Unix()}), latest},
		"a time beyond all":                {jwt(t, map[string]any{"exp": 1e300}), latest},
		"no end":                           {jwt(t, map[string]any{"sub": "anna"}), latest},
		"an end before the epoch":          {jwt(t, map[string]any{"exp": -5}), latest},
		"an end that is a text":            {jwt(t, map[string]any{"exp": "never"}), latest},
		"no JWT":                           {"abcdef", latest},
		"a JWT whose claims are no base64": {"a.!.b", latest},
		"has ended":                        {jwt(t, map[string]any{"exp": testTime.Add(-time.Hour).Unix()}), testTime.Add(-time.Hour)},
	} {
		t.Run(name, func(t *testing.T) {
			assert.True(t, signInEnd(tt.token, testTime).Equal(tt.want), signInEnd(tt.token, testTime))
		})
	}
}

func TestPastedTokens(t *testing.T) {
	for text, want := range map[string]string{
		"abc.def.ghi": "abc.def.ghi", "  abc\r\n": "abc", "Bearer abc": "abc", "bearer  abc": "abc", "a1-._~+/=": "a1-._~+/=",
		"": "", "two words": "", "line\nbreak": "", "<script>": "", "naïve": "", "a\x00b": "", "a;b": "",
	} {
		token, ok := cleanToken(text)
		assert.Equal(t, want != "", ok, "%q", text)
		if ok {
			assert.Equal(t, want, token)
		}
	}
}

func TestBearerTokens(t *testing.T) {
	for name, tt := range map[string]struct {
		values  []string
		want    string
		wantErr error
	}{
		"none":                  {},
		"a token":               {values: []string{"Bearer abc"}, want: "abc"},
		"in lower case":         {values: []string{"bearer abc"}, want: "abc"},
		"basic, of an ingress":  {values: []string{"Basic YTpi"}},
		"the scheme alone":      {values: []string{"Bearer"}},
		"an empty one":          {values: []string{"Bearer "}},
		"two":                   {values: []string{"Bearer abc", "Bearer def"}, wantErr: errSeveralHeaders},
		"basic before a bearer": {values: []string{"Basic YTpi", "Bearer abc"}, wantErr: errSeveralHeaders},
	} {
		t.Run(name, func(t *testing.T) {
			got, err := bearerToken(http.Header{"Authorization": tt.values})
			require.ErrorIs(t, err, tt.wantErr)
			assert.Equal(t, tt.want, got)
		})
	}
}
