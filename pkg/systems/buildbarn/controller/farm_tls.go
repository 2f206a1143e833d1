package controller

import (
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	buildbarn "github.com/coracle-dev/coracle/apis/buildbarn/v1alpha1"
	"github.com/coracle-dev/coracle/pkg/systems/buildbarn/certificates"
	"github.com/coracle-dev/coracle/pkg/systems/buildbarn/config"
)

// Issue is a Secret to fill: with an authority, or with a certificate that an authority signs.
type Issue struct {
	// Secret is the Secret's metadata. Without a resource version it is created.
	Secret    *corev1.Secret
	Authority *certificates.Authority // nil for the authority's own Secret
	Leaf      certificates.Leaf
}

// content returns new content for the Secret. It differs in each call.
func (i Issue) content(now time.Time) (map[string][]byte, error) {
	if i.Authority == nil {
		return certificates.NewAuthority(i.Secret.Name, now)
	}
	return i.Authority.Issue(i.Leaf, now)
}

type setCondition = func(kind string, ok bool, reason, message string)

// certificates plans the Secrets of a farm with TLS, and returns the trust of its programs, nil without TLS. ok is
// false if the farm's parts cannot be planned yet.
func (a *FarmActions) certificates(o FarmObserved, b *buildbarn.Buildbarn, condition setCondition,
	now time.Time) (*config.Trust, bool) {
	wanted := map[string]bool{}
	defer func() {
		for _, s := range o.Secrets {
			if metav1.IsControlledBy(s, b) && !wanted[s.Name] && s.DeletionTimestamp == nil {
				a.Delete = append(a.Delete, s)
			}
		}
	}()
	if b.Spec.TLS == nil {
		a.forget(buildbarn.ConditionCertificates)
		return nil, true
	}
	leaves := leavesOf(b)
	for name := range leaves {
		wanted[name] = true
	}
	name := config.AuthorityOf(b.Name)
	wanted[name] = true
	fail := func(reason, message string) (*config.Trust, bool) {
		a.Status.State = buildbarn.NotReady
		condition(buildbarn.ConditionCertificates, false, reason, message)
		condition(buildbarn.ConditionReady, false, reason, message)
		return nil, false
	}
	have := o.secret(name)
	switch {
	case have == nil:
		a.Issue = append(a.Issue, Issue{Secret: newSecret(b, name)})
		condition(buildbarn.ConditionReady, false, "PartsNotReady", "waiting for the certificate authority")
		return nil, false
	case !metav1.IsControlledBy(have, b):
		return fail("NameTaken",
			fmt.Sprintf("there is a Secret %s that this farm has not made: delete it, or choose another name", name))
	}
	authority, err := certificates.ParseAuthority(have.Data, now)
	var keys map[string]any
	if err == nil {
		keys, err = authority.TokenKeys()
	}
	if err != nil {
		return fail("AuthorityInvalid",
			fmt.Sprintf("Secret %s: %v: restore it, or delete it to get a new authority, which restarts all parts",
				name, err))
	}
	taken, next := "", time.Time{}
	for name, leaf := range leaves {
		have := o.secret(name)
		if have != nil && !metav1.IsControlledBy(have, b) {
			taken = name
			continue
		}
		due := now
		if have != nil {
			due = authority.Due(have.Data, leaf)
		}
		if !due.After(now) {
			secret := newSecret(b, name)
			if have != nil {
				secret = have.DeepCopy()
			}
			a.Issue = append(a.Issue, Issue{secret, authority, leaf})
			due = now.Add(leaf.Life * 2 / 3)
		}
		if next.IsZero() || due.Before(next) {
			next = due
		}
	}
	if taken != "" {
		return fail("NameTaken",
			fmt.Sprintf("there is a Secret %s that this farm has not made: delete it, or choose another name", taken))
	}
	a.Again = next.Sub(now)
	condition(buildbarn.ConditionCertificates, true, "Issued",
		fmt.Sprintf("renewed on %s", next.UTC().Format(time.RFC3339)))
	return &config.Trust{Authorities: authority.PEM(), TokenKeys: keys}, true
}

func newSecret(b *buildbarn.Buildbarn, name string) *corev1.Secret {
	return &corev1.Secret{ObjectMeta: farmMeta(b, name), Type: corev1.SecretTypeTLS}
}

// leavesOf returns the certificates of a farm by the names of their Secrets.
func leavesOf(b *buildbarn.Buildbarn) map[string]certificates.Leaf {
	life := time.Duration(b.Spec.TLS.LifetimeHours) * time.Hour
	all := map[string]certificates.Leaf{
		config.ClientOf(b.Name):   {Identity: config.Identity(b, config.RoleClient), Life: life, Token: true},
		config.OperatorOf(b.Name): {Identity: config.Identity(b, config.RoleOperator), Life: life},
	}
	for _, p := range parts(b) {
		leaf := certificates.Leaf{Identity: config.Identity(b, p.Component()), Life: life}
		switch p.Component() { // these have a server
		case "scheduler", "storage", "frontend":
			leaf.Hosts = hosts(p)
		}
		if p.Component() == "frontend" {
			leaf.Hosts = append(leaf.Hosts, "localhost", "127.0.0.1", "::1")
			leaf.Hosts = append(leaf.Hosts, b.Spec.TLS.Names...)
		}
		all[config.TLSOf(p.GetName())] = leaf
	}
	return all
}

// hosts returns the names of a part's Service and, for storage, of its pods.
func hosts(p buildbarn.Part) (names []string) {
	name := p.GetName()
	for _, suffix := range []string{"", "." + p.GetNamespace(), "." + p.GetNamespace() + ".svc"} {
		names = append(names, name+suffix)
		if p.Component() == "storage" {
			names = append(names, "*."+name+suffix)
		}
	}
	return names
}
