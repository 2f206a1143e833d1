package access

import (
	"context"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	"k8s.io/apimachinery/pkg/util/cache"
	"k8s.io/apiserver/pkg/authentication/authenticator"
)

// A token on which an authenticator panics is rejected. The process and the next token are not affected.
func TestATokenThatPanics(t *testing.T) {
	r := &remembering{known: cache.NewLRUExpireCache(10), ttl: time.Minute, failures: true,
		next: authenticator.TokenFunc(func(_ context.Context, token string) (*authenticator.Response, bool, error) {
			if token == "bad" {
				panic("injected")
			}
			return &authenticator.Response{}, true, nil
		})}
	_, ok, err := r.AuthenticateToken(t.Context(), "bad")
	require.False(t, ok)
	require.ErrorContains(t, err, "injected")
	_, ok, err = r.AuthenticateToken(t.Context(), "good")
	require.True(t, ok)
	require.NoError(t, err)
}

// While the webhook does not respond, clients that send tokens and disconnect do not accumulate calls: the number of
// concurrent calls and the duration of each are limited.
func TestTokensWhileNobodyAnswers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := &remembering{
			known: cache.NewLRUExpireCache(10),
			next: authenticator.TokenFunc(func(ctx context.Context, _ string) (*authenticator.Response, bool, error) {
				<-ctx.Done()
				return nil, false, ctx.Err()
			}),
		}
		gone, leave := context.WithCancel(t.Context())
		leave()
		refused := 0
		for i := range 2 * maxAsking {
			_, ok, err := r.AuthenticateToken(gone, fmt.Sprint(i))
			require.False(t, ok)
			require.Error(t, err)
			if err.Error() != context.Canceled.Error() {
				require.ErrorContains(t, err, "too many tokens")
				refused++
			}
			synctest.Wait()
		}
		require.Equal(t, maxAsking, refused)
		require.EqualValues(t, maxAsking, r.asked.Load())
		time.Sleep(longest)
		synctest.Wait()
		require.Zero(t, r.asked.Load())
	})
}
