package api

import (
	"context"
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"sync"
	"time"

	"golang.org/x/sync/singleflight"
	authnv1 "k8s.io/api/authentication/v1"
	authzv1 "k8s.io/api/authorization/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/util/cache"

	"github.com/coracle-dev/coracle/pkg/base/bounded"
	"github.com/coracle-dev/coracle/pkg/client"
)

// How long the API server's answers are cached: the kubelet's defaults.
const (
	tokenFor   = 2 * time.Minute
	allowedFor = 5 * time.Minute
	refusedFor = 30 * time.Second
)

const (
	// maxKnown limits the cached answers of each kind.
	maxKnown = 2048
	// longestReview limits the wait for the API server.
	longestReview = 10 * time.Second
	// newTokens limits the tokens that the API server is asked about in each newTokensPeriod: from one network (an
	// IPv4 address or a /64), and from all. Requests beyond it are refused, unless their token is cached.
	newTokens, newTokensInAll = 20, 500
	newTokensPeriod           = 10 * time.Second
)

// reviews asks the API server who callers are and what they may do. Invariant: whatever clients without credentials
// send, the API server gets at most newTokensInAll reviews in each newTokensPeriod.
type reviews struct {
	client         client.Interface
	tokens, rights *verdicts

	mu   sync.Mutex
	from *cache.LRUExpireCache // of *bounded.Rate by netip.Prefix
	all  bounded.Rate
}

func newReviews(c client.Interface) *reviews {
	return &reviews{
		client: c,
		tokens: newVerdicts(tokenFor, tokenFor),
		rights: newVerdicts(allowedFor, refusedFor),
		from:   cache.NewLRUExpireCache(maxKnown),
		all:    bounded.Rate{Most: newTokensInAll, Every: newTokensPeriod},
	}
}

// mayAsk reports whether the API server may be asked about another token from a client's address.
func (r *reviews) mayAsk(remote string) bool {
	var network netip.Prefix
	if host, _, err := net.SplitHostPort(remote); err == nil {
		if a, err := netip.ParseAddr(host); err == nil {
			a = a.Unmap().WithZone("")
			network, _ = a.Prefix(min(a.BitLen(), 64))
		}
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	each, ok := r.from.Get(network)
	if !ok {
		each = &bounded.Rate{Most: newTokens, Every: newTokensPeriod}
		r.from.Add(network, each, newTokensPeriod)
	}
	if _, ok := each.(*bounded.Rate).Allow(); !ok {
		return false
	}
	_, ok = r.all.Allow()
	return ok
}

// user returns the user of a token, or the HTTP status for the error.
func (r *reviews) user(req *http.Request, token string) (authnv1.UserInfo, int, error) {
	user, ok, err := r.tokens.get(req.Context(), []byte(token), func(ctx context.Context) (any, bool, error) {
		if !r.mayAsk(req.RemoteAddr) {
			return nil, false, errTooMany
		}
		review := &authnv1.TokenReview{Spec: authnv1.TokenReviewSpec{Token: token}}
		err := r.client.Create(ctx, review)
		if apierrors.IsBadRequest(err) || apierrors.IsInvalid(err) {
			return nil, false, nil
		}
		return review.Status.User, review.Status.Authenticated, err
	})
	switch {
	case err == errTooMany: //nolint:errorlint // it is not wrapped
		return authnv1.UserInfo{}, http.StatusTooManyRequests, err
	case err != nil:
		return authnv1.UserInfo{}, http.StatusServiceUnavailable, fmt.Errorf("could not authenticate the request: %w", err)
	case !ok:
		return authnv1.UserInfo{}, http.StatusUnauthorized, errUnauthorized
	}
	return user.(authnv1.UserInfo), 0, nil
}

// allowed reports whether the API server allows an access.
func (r *reviews) allowed(ctx context.Context, access authzv1.SubjectAccessReviewSpec) (bool, error) {
	key, err := json.Marshal(access)
	if err != nil {
		return false, err
	}
	_, ok, err := r.rights.get(ctx, key, func(ctx context.Context) (any, bool, error) {
		review := &authzv1.SubjectAccessReview{Spec: access}
		err := r.client.Create(ctx, review)
		return nil, review.Status.Allowed, err
	})
	return ok, err
}

// verdicts caches answers by the hash of a question. Positive and negative ones have tables of their own, so that
// rejected tokens do not replace accepted ones.
type verdicts struct {
	yes, no       *cache.LRUExpireCache
	yesFor, noFor time.Duration
	asking        singleflight.Group
}

func newVerdicts(yes, no time.Duration) *verdicts {
	return &verdicts{yes: cache.NewLRUExpireCache(maxKnown), no: cache.NewLRUExpireCache(maxKnown), yesFor: yes, noFor: no}
}

// get returns a cached answer, or calls ask. Concurrent calls with the same question share one call of ask.
func (a *verdicts) get(ctx context.Context, question []byte,
	ask func(context.Context) (any, bool, error)) (any, bool, error) {
	key := sha256.Sum256(question)
	if v, ok := a.yes.Get(key); ok {
		return v, true, nil
	}
	if _, ok := a.no.Get(key); ok {
		return nil, false, nil
	}
	type answer struct {
		value any
		ok    bool
	}
	asked := a.asking.DoChan(string(key[:]), func() (any, error) {
		// If the first caller disconnects, the others still need the answer.
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), longestReview)
		defer cancel()
		value, ok, err := ask(ctx)
		switch {
		case err != nil:
			return answer{}, err
		case ok:
			a.yes.Add(key, value, a.yesFor)
		default:
			a.no.Add(key, nil, a.noFor)
		}
		return answer{value, ok}, nil
	})
	select {
	case got := <-asked:
		v, _ := got.Val.(answer)
		return v.value, v.ok, got.Err
	case <-ctx.Done():
		return nil, false, ctx.Err()
	}
}
