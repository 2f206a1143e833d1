package encryption

import (
	"bytes"
	"context"
	"crypto/aes"
	"encoding/base64"
	"errors"
	"fmt"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/apis/apiserver"
	"k8s.io/apiserver/pkg/storage/value"
	aestransformer "k8s.io/apiserver/pkg/storage/value/encrypt/aes"
	"k8s.io/apiserver/pkg/storage/value/encrypt/secretbox"

	"github.com/coracle-dev/coracle/pkg/state/encryption/kms"
)

// Label identifies the provider and key of a stored value. Both are empty for an unencrypted value.
type Label struct{ Provider, Key string }

func (l Label) String() string {
	if l.Provider == "" {
		return "no encryption"
	}
	return fmt.Sprintf("%s key %q", l.Provider, l.Key)
}

// Prefixes of stored values (kubernetes.io/docs/tasks/administer-cluster/encrypt-data).
const (
	encrypted = "k8s:enc:"
	version   = ":v1:"
	kmsPrefix = encrypted + "kms:v2:"
)

func labelOf(stored []byte) Label {
	if !bytes.HasPrefix(stored, []byte(encrypted)) {
		return Label{}
	}
	if rest, ok := bytes.CutPrefix(stored, []byte(kmsPrefix)); ok {
		name, _, _ := bytes.Cut(rest[:min(len(rest), maxKeyName+1)], []byte(":"))
		return Label{Provider: kmsName, Key: string(name)}
	}
	head := string(stored[len(encrypted):min(len(stored), len(encrypted)+64+maxKeyName)])
	provider, rest, ok := strings.Cut(head, version)
	if !ok || len(provider) > 32 {
		return Label{Provider: "unknown"}
	}
	key, _, ok := strings.Cut(rest, ":")
	if !ok {
		key = ""
	}
	return Label{Provider: provider, Key: key}
}

// Errors of values that cannot be read, for errors.Is.
var (
	// ErrNoKey means that the configuration has no provider for the value's key, or no identity provider for an
	// unencrypted value.
	ErrNoKey = errors.New("no such provider is configured")
	// ErrDamaged means that the key of that name does not decrypt the value.
	ErrDamaged = errors.New("the key has a different secret, or the stored bytes are damaged")
)

// provider is one key of a configured provider, or identity, which has no transformer.
type provider struct {
	label       Label
	prefix      string // of the values that it writes
	transformer value.Transformer
}

// rule has the providers of a resource. The first encrypts; all of them decrypt.
type rule struct {
	resource  string
	providers []provider
}

func (r *rule) seal(key string, plain []byte) ([]byte, error) {
	p := &r.providers[0]
	if p.transformer == nil {
		return plain, nil
	}
	began := time.Now()
	out, err := p.transformer.TransformToStorage(context.Background(), plain, value.DefaultContext(key))
	value.RecordTransformation(r.resource, "to_storage", p.metric(), time.Since(began), err)
	if err != nil {
		return nil, err
	}
	return append(append(make([]byte, 0, len(p.prefix)+len(out)), p.prefix...), out...), nil
}

// open also reports whether the value was read by the provider that encrypts new values.
func (r *rule) open(key string, stored []byte) (plain []byte, current bool, err error) {
	began := time.Now()
	found := false
	for i := range r.providers {
		p := &r.providers[i]
		if p.transformer == nil {
			if !bytes.HasPrefix(stored, []byte(encrypted)) {
				return stored, i == 0, nil
			}
			continue
		}
		data, ok := bytes.CutPrefix(stored, []byte(p.prefix))
		if !ok {
			continue
		}
		found = true
		var stale bool
		plain, stale, err = p.open(key, data)
		if err == nil {
			value.RecordTransformation(r.resource, "from_storage", p.metric(), time.Since(began), nil)
			return plain, i == 0 && !stale, nil
		}
	}
	cause := err
	err = fmt.Errorf("it is encrypted with the %s: %w", labelOf(stored), ErrNoKey)
	switch {
	case errors.Is(cause, kms.ErrUnavailable):
		err = cause
	case found && labelOf(stored).Provider == kmsName:
		err = fmt.Errorf("it cannot be decrypted with the %s: %w: %w", labelOf(stored), ErrDamaged, cause)
	case found:
		err = fmt.Errorf("it cannot be decrypted with the %s: %w", labelOf(stored), ErrDamaged)
	case labelOf(stored) == Label{}:
		err = fmt.Errorf("it is stored without encryption, and identity is not among the providers: %w", ErrNoKey)
	}
	value.RecordTransformation(r.resource, "from_storage", "unknown", time.Since(began), err)
	return nil, false, err
}

// open decrypts data. stale reports that writes use another key by now. It recovers, because upstream's AES-CBC panics
// if only the initialization vector is there.
func (p *provider) open(key string, data []byte) (plain []byte, stale bool, err error) {
	defer func() {
		if v := recover(); v != nil {
			err = fmt.Errorf("%w: %v", ErrDamaged, v)
		}
	}()
	return p.transformer.TransformFromStorage(context.Background(), data, value.DefaultContext(key))
}

func (p *provider) metric() string {
	if p.label.Provider == kmsName {
		return kmsPrefix
	}
	return encrypted + p.label.Provider + version
}

type settings struct {
	rules map[schema.GroupResource]*rule // by resource in the file, including wildcards
	order []schema.GroupResource         // the keys of rules in file order

	plugins []*kms.Provider // of the rules
}

// rule returns the rule of a resource: its own, its group's, or the one for all resources; nil if there is none.
func (s *settings) rule(r schema.GroupResource) *rule {
	if own := s.rules[r]; own != nil {
		return own
	}
	if group := s.rules[schema.GroupResource{Group: r.Group, Resource: "*"}]; group != nil {
		return group
	}
	return s.rules[anything]
}

// compile returns the settings of a valid configuration. Their plugins have not been called yet.
func compile(c *apiserver.EncryptionConfiguration) (_ *settings, err error) {
	s := &settings{rules: map[schema.GroupResource]*rule{}}
	defer func() {
		if err != nil {
			s.close()
		}
	}()
	for _, entry := range c.Resources {
		var all []provider
		for _, p := range entry.Providers {
			if p.KMS != nil {
				one, err := kms.New(kms.Config{Name: p.KMS.Name, Endpoint: p.KMS.Endpoint, Timeout: p.KMS.Timeout.Duration})
				if err != nil {
					return nil, err
				}
				s.plugins = append(s.plugins, one)
				all = append(all, provider{
					label:       Label{kmsName, p.KMS.Name},
					prefix:      kmsPrefix + p.KMS.Name + ":",
					transformer: one,
				})
				continue
			}
			some, err := providers(p)
			if err != nil {
				return nil, err
			}
			all = append(all, some...)
		}
		for _, name := range entry.Resources {
			gr := schema.ParseGroupResource(name)
			r := s.rules[gr]
			if r == nil {
				r = &rule{resource: written(gr)}
				s.rules[gr] = r
				s.order = append(s.order, gr)
			}
			r.providers = append(r.providers, all...)
		}
	}
	for _, r := range s.rules {
		if err := ambiguous(r); err != nil {
			return nil, err
		}
	}
	return s, nil
}

// ambiguous refuses AES-CBC keys with the same name: decryption with the wrong one occasionally succeeds and returns
// garbage.
func ambiguous(r *rule) error {
	seen := map[string]bool{}
	for _, p := range r.providers {
		if p.label.Provider == aescbc && seen[p.prefix] {
			return fmt.Errorf("two aescbc keys for %s have the name %q: give the newer one another name, since the name says "+
				"which key decrypts", r.resource, p.label.Key)
		}
		seen[p.prefix] = true
	}
	return nil
}

const aescbc, aesgcm, secretBox, kmsName = "aescbc", "aesgcm", "secretbox", "kms"

func providers(p apiserver.ProviderConfiguration) ([]provider, error) {
	switch {
	case p.AESCBC != nil:
		return keyed(aescbc, p.AESCBC.Keys, func(secret []byte) (value.Transformer, error) {
			block, err := aes.NewCipher(secret)
			return aestransformer.NewCBCTransformer(block), err
		})
	case p.AESGCM != nil:
		return keyed(aesgcm, p.AESGCM.Keys, func(secret []byte) (value.Transformer, error) {
			block, err := aes.NewCipher(secret)
			if err != nil {
				return nil, err
			}
			return aestransformer.NewGCMTransformer(block)
		})
	case p.Secretbox != nil:
		return keyed(secretBox, p.Secretbox.Keys, func(secret []byte) (value.Transformer, error) {
			return secretbox.NewSecretboxTransformer([32]byte(secret)), nil
		})
	}
	return []provider{{}}, nil // identity
}

func keyed(name string, keys []apiserver.Key,
	transformer func(secret []byte) (value.Transformer, error)) (all []provider, err error) {
	for _, k := range keys {
		secret, err := base64.StdEncoding.DecodeString(k.Secret)
		if err != nil {
			return nil, fmt.Errorf("the secret of the %s key %q is not base64", name, k.Name)
		}
		t, err := transformer(secret)
		if err != nil {
			return nil, err
		}
		all = append(all, provider{
			label:       Label{name, k.Name},
			prefix:      encrypted + name + version + k.Name + ":",
			transformer: t,
		})
	}
	return all, nil
}
