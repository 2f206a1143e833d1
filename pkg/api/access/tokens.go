package access

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"strings"
	"sync/atomic"
	"time"

	"golang.org/x/sync/singleflight"
	"k8s.io/apimachinery/pkg/util/cache"
	"k8s.io/apiserver/pkg/authentication/authenticator"
	webhookutil "k8s.io/apiserver/pkg/util/webhook"
	"k8s.io/apiserver/plugin/pkg/authenticator/token/webhook"

	bounds "github.com/coracle-dev/coracle/pkg/api/webhook"
)

// Webhook is a server that authenticates tokens by TokenReviews.
type Webhook struct {
	// Kubeconfig is the path of the kubeconfig for the server. Empty disables the webhook.
	Kubeconfig string
	// Version is the version of TokenReview: v1 or v1beta1.
	Version string
	// TTL is how long a response is cached. 0 disables the cache.
	TTL time.Duration
}

// longest limits the authentication of a token, also after its client has disconnected.
const longest = time.Minute

// maxCalls limits concurrent calls of a webhook. Further requests wait.
const maxCalls = 64

func newTokenWebhook(c Webhook, audiences []string) (authenticator.Token, error) {
	config, err := webhookutil.LoadKubeconfig(c.Kubeconfig, nil)
	if err != nil {
		return nil, err
	}
	w, err := webhook.New(bounds.Bound(config, maxAnswer), c.Version, audiences, *webhook.DefaultRetryBackoff())
	if err != nil {
		return nil, err
	}
	return &remembering{
		next:     limited{w, make(chan struct{}, maxCalls)},
		ttl:      c.TTL,
		known:    cache.NewLRUExpireCache(maxRemembered),
		failures: true,
	}, nil
}

// maxAsking limits the tokens that are being authenticated or waiting. A client that disconnects still counts, for
// at most longest.
const maxAsking = 4096

// limited limits concurrent calls.
type limited struct {
	next authenticator.Token
	free chan struct{}
}

func (l limited) AuthenticateToken(ctx context.Context, token string) (*authenticator.Response, bool, error) {
	select {
	case l.free <- struct{}{}:
		defer func() { <-l.free }()
	case <-ctx.Done():
		return nil, false, ctx.Err()
	}
	return l.next.AuthenticateToken(ctx, token)
}

// remembering caches results by the hash of token and audiences. Concurrent requests with the same token share one
// call.
type remembering struct {
	next     authenticator.Token
	ttl      time.Duration
	known    *cache.LRUExpireCache
	failures bool // cache rejected tokens too, but never errors
	asking   singleflight.Group
	asked    atomic.Int64 // number of tokens being authenticated
}

// verdict is a result without an error.
type verdict struct {
	response *authenticator.Response
	ok       bool
}

func (r *remembering) AuthenticateToken(ctx context.Context, token string) (*authenticator.Response, bool, error) {
	audiences, limited := authenticator.AudiencesFrom(ctx)
	hash := sha256.New()
	_, _ = io.WriteString(hash, token+"\x00"+strings.Join(audiences, "\x00"))
	if limited {
		_, _ = hash.Write([]byte{1})
	}
	key := string(hash.Sum(nil))
	if v, ok := r.known.Get(key); ok {
		known := v.(verdict)
		return known.response, known.ok, nil
	}
	if r.asked.Load() >= maxAsking {
		return nil, false, errors.New("too many tokens are being authenticated: try again")
	}
	answer := r.asking.DoChan(key, func() (answer any, err error) {
		r.asked.Add(1)
		defer r.asked.Add(-1)
		defer func() { // singleflight would crash the process
			if p := recover(); p != nil {
				answer, err = verdict{}, fmt.Errorf("panic while authenticating a token: %v", p)
			}
		}()
		// The first request's cancellation must not fail the others.
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), longest)
		defer cancel()
		response, ok, err := r.next.AuthenticateToken(ctx, token)
		if err != nil {
			return verdict{}, err
		}
		if r.ttl > 0 && (ok || r.failures) {
			r.known.Add(key, verdict{response, ok}, r.ttl)
		}
		return verdict{response, ok}, nil
	})
	select {
	case a := <-answer:
		v := a.Val.(verdict)
		return v.response, v.ok, a.Err
	case <-ctx.Done():
		return nil, false, ctx.Err()
	}
}
