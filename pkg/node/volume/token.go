package volume

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"strings"
	"sync"
	"time"

	authv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/coracle-dev/coracle/pkg/client"
)

type token struct {
	text    string
	refresh time.Time
	expires metav1.Time
}

// tokens requests and caches service account tokens. It is safe for concurrent use.
type tokens struct {
	client client.Interface

	mu    sync.Mutex
	byKey map[string]token // by pod UID, audience, lifetime, and service account UID if the caller requires one
}

func newTokens(c client.Interface) *tokens { return &tokens{client: c, byKey: map[string]token{}} }

// Token returns a token of the pod's service account, for the API server.
func (m *Manager) Token(ctx context.Context, p *corev1.Pod) (string, error) {
	t, err := m.tokens.get(ctx, p, &corev1.ServiceAccountTokenProjection{})
	return t.text, err
}

// TokenOf returns a token of the pod's service account for an audience. It fails if the account has another UID.
func (m *Manager) TokenOf(ctx context.Context, p *corev1.Pod, account types.UID, audience string) (string, error) {
	t, err := m.tokens.of(ctx, p, account, &corev1.ServiceAccountTokenProjection{Audience: audience})
	return t.text, err
}

func (t *tokens) forget(uid types.UID) {
	t.mu.Lock()
	defer t.mu.Unlock()
	maps.DeleteFunc(t.byKey, func(k string, _ token) bool { return strings.HasPrefix(k, string(uid)+"/") })
}

// get returns a token of the pod's service account. It renews after 4/5 of the lifetime or a day.
func (t *tokens) get(ctx context.Context, p *corev1.Pod, s *corev1.ServiceAccountTokenProjection) (token, error) {
	return t.of(ctx, p, "", s)
}

// of is get for the service account with this UID; "" accepts any UID.
func (t *tokens) of(ctx context.Context, p *corev1.Pod, uid types.UID,
	s *corev1.ServiceAccountTokenProjection) (token, error) {
	seconds := int64(3600)
	if s.ExpirationSeconds != nil {
		seconds = *s.ExpirationSeconds
	}
	key := fmt.Sprintf("%s/%s/%d/%s", p.UID, s.Audience, seconds, uid)
	now := time.Now()
	t.mu.Lock()
	have, ok := t.byKey[key]
	t.mu.Unlock()
	if ok && now.Before(have.refresh) {
		return have, nil
	}
	account := cmp.Or(p.Spec.ServiceAccountName, "default")
	req := &authv1.TokenRequest{ObjectMeta: metav1.ObjectMeta{UID: uid}, Spec: authv1.TokenRequestSpec{
		ExpirationSeconds: &seconds,
		BoundObjectRef:    &authv1.BoundObjectReference{Kind: "Pod", APIVersion: "v1", Name: p.Name, UID: p.UID},
	}}
	if s.Audience != "" {
		req.Spec.Audiences = []string{s.Audience}
	}
	sa := &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Namespace: p.Namespace, Name: account}}
	if err := t.client.SubResource("token").Create(ctx, sa, req); err != nil {
		if ok && now.Before(have.refresh.Add(time.Duration(seconds)*time.Second/5)) {
			return have, nil // the token is still valid
		}
		return token{}, fmt.Errorf("failed to fetch token: %w", err)
	}
	life := time.Until(req.Status.ExpirationTimestamp.Time)
	if life <= 0 {
		life = time.Duration(seconds) * time.Second
	}
	fresh := token{
		text:    req.Status.Token,
		refresh: now.Add(min(life*4/5, 24*time.Hour)),
		expires: req.Status.ExpirationTimestamp,
	}
	t.mu.Lock()
	t.byKey[key] = fresh
	t.mu.Unlock()
	return fresh, nil
}
