package jointoken

import (
	"context"
	"crypto/subtle"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	ctrl "sigs.k8s.io/controller-runtime/pkg/client"
)

const (
	// DefaultLife is the default lifetime of a token.
	DefaultLife    = 24 * time.Hour
	maxDescription = 1024

	secretType = corev1.SecretType("coracle.dev/join-token")
	namePrefix = "join-token-"

	hashKey        = "token-hash"
	expirationKey  = "expiration"
	descriptionKey = "description"
)

// Record is the stored form of a token.
type Record struct {
	ID, Description string
	Created         time.Time
	// Expires is zero for a token that does not expire.
	Expires time.Time
}

// Expired reports whether the token has expired.
func (r Record) Expired(now time.Time) bool { return !r.Expires.IsZero() && !now.Before(r.Expires) }

// Create creates a token that is valid for life, or until it is revoked if life is 0, and removes expired tokens.
// authority is the cluster's CA, as in a kubeconfig.
func Create(ctx context.Context, c ctrl.Client, authority []byte, life time.Duration, description string,
	now time.Time) (Token, error) {
	if life < 0 {
		return Token{}, fmt.Errorf("invalid token lifetime %s", life)
	}
	if len(description) > maxDescription {
		return Token{}, fmt.Errorf("the description is longer than %d bytes", maxDescription)
	}
	t, err := New(authority)
	if err != nil {
		return t, err
	}
	s := &corev1.Secret{
		ObjectMeta: metav1.ObjectMeta{Namespace: metav1.NamespaceSystem, Name: namePrefix + t.ID},
		Type:       secretType,
		Data:       map[string][]byte{hashKey: []byte(t.hash())},
	}
	if life > 0 {
		s.Data[expirationKey] = []byte(now.Add(life).UTC().Format(time.RFC3339))
	}
	if description != "" {
		s.Data[descriptionKey] = []byte(description)
	}
	if err := c.Create(ctx, s); err != nil {
		return t, err
	}
	return t, prune(ctx, c, now)
}

func prune(ctx context.Context, c ctrl.Client, now time.Time) error {
	all, err := List(ctx, c)
	for _, r := range all {
		if r.Expired(now) {
			err = errors.Join(err, ctrl.IgnoreNotFound(c.Delete(ctx, secret(r.ID))))
		}
	}
	return err
}

func secret(id string) *corev1.Secret {
	return &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: metav1.NamespaceSystem, Name: namePrefix + id}}
}

// List returns all tokens, oldest first. It skips malformed tokens, which Check does not accept.
func List(ctx context.Context, c ctrl.Client) ([]Record, error) {
	var secrets corev1.SecretList
	if err := c.List(ctx, &secrets, ctrl.InNamespace(metav1.NamespaceSystem), ctrl.MatchingFields{
		"type": string(secretType),
	}); err != nil {
		return nil, err
	}
	var all []Record
	for i := range secrets.Items {
		if r, err := read(&secrets.Items[i]); err == nil {
			all = append(all, r)
		}
	}
	slices.SortStableFunc(all, func(a, b Record) int { return a.Created.Compare(b.Created) })
	return all, nil
}

func read(s *corev1.Secret) (Record, error) {
	id, ok := strings.CutPrefix(s.Name, namePrefix)
	if s.Type != secretType || !ok || len(s.Data[hashKey]) == 0 {
		return Record{}, fmt.Errorf("secret %s is not a join token", s.Name)
	}
	r := Record{ID: id, Description: string(s.Data[descriptionKey]), Created: s.CreationTimestamp.Time}
	if text, limited := s.Data[expirationKey]; limited {
		var err error
		if r.Expires, err = time.Parse(time.RFC3339, string(text)); err != nil {
			return r, fmt.Errorf("secret %s: %s: %w", s.Name, expirationKey, err)
		}
	}
	return r, nil
}

// Revoke deletes the token with an ID.
func Revoke(ctx context.Context, c ctrl.Client, id string) error {
	err := fmt.Errorf("there is no join token %q: `coracle token list` shows them", id)
	if !encoded(id, idBytes) {
		return err
	}
	failed := c.Delete(ctx, secret(id))
	if apierrors.IsNotFound(failed) {
		return err
	}
	return failed
}

// ErrRefused means that the cluster does not accept a token. It does not say why, since the caller is not
// authenticated.
var ErrRefused = errors.New("the join token is unknown here, was revoked or has expired: `coracle token create` on " +
	"the server makes a new one")

// Check accepts a token that the cluster knows and that has not expired. Otherwise it returns ErrRefused; any other
// error means that the token could not be checked.
func Check(ctx context.Context, c ctrl.Reader, text string, now time.Time) error {
	t, err := Parse(text)
	if err != nil {
		return ErrRefused
	}
	var s corev1.Secret
	if err := c.Get(ctx, ctrl.ObjectKeyFromObject(secret(t.ID)), &s); apierrors.IsNotFound(err) {
		return ErrRefused
	} else if err != nil {
		return err
	}
	r, err := read(&s)
	if err != nil || r.Expired(now) || subtle.ConstantTimeCompare([]byte(t.hash()), s.Data[hashKey]) != 1 {
		return ErrRefused
	}
	return nil
}
