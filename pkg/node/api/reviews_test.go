package api

import (
	"context"
	"fmt"
	"net/http"
	"net/http/httptest"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	authnv1 "k8s.io/api/authentication/v1"
	authzv1 "k8s.io/api/authorization/v1"
	ctrl "sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/coracle-dev/coracle/pkg/client"
)

// reviewer authenticates the token "good" and counts reviews.
type reviewer struct {
	client.Interface
	tokens, rights atomic.Int64
	allowed        atomic.Bool
	busy           time.Duration
}

func (r *reviewer) Create(_ context.Context, o ctrl.Object, _ ...ctrl.CreateOption) error {
	time.Sleep(r.busy)
	switch review := o.(type) {
	case *authnv1.TokenReview:
		r.tokens.Add(1)
		review.Status.Authenticated = review.Spec.Token == "good"
		review.Status.User.Username = review.Spec.Token
	case *authzv1.SubjectAccessReview:
		r.rights.Add(1)
		review.Status.Allowed = r.allowed.Load()
	}
	return nil
}

// A client without credentials cannot make a node send requests to the API server without end, and does not lock out
// clients that are known.
func TestTokensOfStrangersAreLimited(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := &reviewer{}
		c.allowed.Store(true)
		s := &Server{reviews: newReviews(c)}
		h := s.allow(func(http.ResponseWriter, *http.Request) {}, "", "metrics")
		get := func(token, from string) int {
			r := httptest.NewRequest(http.MethodGet, "/metrics", nil)
			r.RemoteAddr = from
			r.Header.Set("Authorization", "Bearer "+token)
			w := httptest.NewRecorder()
			h.ServeHTTP(w, r)
			return w.Code
		}
		const address, neighbor = "10.0.0.1:1000", "10.0.0.2:1000"
		require.Equal(t, http.StatusOK, get("good", address))
		for i := range 10 * newTokens {
			want := http.StatusUnauthorized
			if i >= newTokens-1 {
				want = http.StatusTooManyRequests
			}
			require.Equal(t, want, get(fmt.Sprint("bad", i), address))
		}
		require.EqualValues(t, newTokens, c.tokens.Load())
		require.Equal(t, http.StatusUnauthorized, get("bad0", address), "a rejected token is remembered")
		require.Equal(t, http.StatusOK, get("good", address), "an accepted token is remembered")
		require.Equal(t, http.StatusUnauthorized, get("another", neighbor), "another address is not limited")

		for i := range 10 * newTokensInAll { // addresses of one network, and of many
			get(fmt.Sprint("v6-", i), fmt.Sprintf("[fd00::%x]:1", i))
			get(fmt.Sprint("v4-", i), fmt.Sprintf("10.1.%d.%d:1", i>>8, i&255))
		}
		require.LessOrEqual(t, c.tokens.Load(), int64(newTokensInAll))
		require.Equal(t, http.StatusOK, get("good", address))
		time.Sleep(newTokensPeriod)
		require.Equal(t, http.StatusUnauthorized, get("new", address))
		asked := c.tokens.Load()
		time.Sleep(tokenFor)
		require.Equal(t, http.StatusOK, get("good", address))
		require.Equal(t, asked+1, c.tokens.Load())
	})
}

// Access is cached as by the kubelet: 5 minutes if it is allowed, 30 seconds if not.
func TestAccessIsCached(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := &reviewer{busy: time.Second}
		s := &Server{reviews: newReviews(c)}
		allowed := func(sub string) bool {
			ok, err := s.allowed(t.Context(), authnv1.UserInfo{Username: "u"}, "get", sub)
			require.NoError(t, err)
			return ok
		}
		for range 100 { // these share a review
			go allowed("stats")
		}
		synctest.Wait()
		require.False(t, allowed("stats"))
		require.EqualValues(t, 1, c.rights.Load())
		c.allowed.Store(true)
		require.False(t, allowed("stats"))
		require.True(t, allowed("metrics"), "another question")
		time.Sleep(refusedFor)
		require.True(t, allowed("stats"))
		c.allowed.Store(false)
		time.Sleep(allowedFor - time.Minute)
		require.True(t, allowed("stats"))
		time.Sleep(time.Minute + time.Second)
		require.False(t, allowed("stats"))
	})
}
