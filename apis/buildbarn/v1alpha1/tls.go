package v1alpha1

import (
	"fmt"
	"net/netip"
	"strings"

	apivalidation "k8s.io/apimachinery/pkg/api/validation"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"
)

const (
	maxNames    = 32
	defaultLife = 720  // hours
	maxLife     = 8760 // hours
)

func defaultFarmTLS(t *FarmTLS) {
	if t != nil {
		set(&t.Clients, ClientsAuthenticated)
		set(&t.LifetimeHours, defaultLife)
	}
}

func validatePartTLS(t *PartTLS, path *field.Path) (errs field.ErrorList) {
	if t == nil {
		return nil
	}
	at := path.Child("tls", "secretName")
	if t.SecretName == "" {
		return field.ErrorList{
			field.Required(at, "name a Secret with tls.crt, tls.key and ca.crt; the farm of a Buildbarn makes its own"),
		}
	}
	for _, msg := range apivalidation.NameIsDNSSubdomain(t.SecretName, false) {
		errs = append(errs, field.Invalid(at, t.SecretName, msg))
	}
	return errs
}

func validateFarmTLS(t *FarmTLS, path *field.Path) (errs field.ErrorList) {
	if t == nil {
		return nil
	}
	at := path.Child("tls")
	switch t.Clients {
	case ClientsAuthenticated, ClientsAnyone:
	default:
		errs = append(errs,
			field.NotSupported(at.Child("clients"), t.Clients, []ClientPolicy{ClientsAuthenticated, ClientsAnyone}))
	}
	errs = append(errs, between(t.LifetimeHours, 1, maxLife, at.Child("lifetimeHours"))...)
	if len(t.Names) > maxNames {
		return append(errs, field.TooMany(at.Child("names"), len(t.Names), maxNames))
	}
	seen := map[string]bool{}
	for i, name := range t.Names {
		one := at.Child("names").Index(i)
		if seen[name] {
			errs = append(errs, field.Duplicate(one, name))
		}
		seen[name] = true
		if a, err := netip.ParseAddr(name); err == nil && a.Zone() == "" {
			continue
		}
		for _, msg := range validation.IsDNS1123Subdomain(strings.TrimPrefix(name, "*.")) {
			errs = append(errs, field.Invalid(one, name, fmt.Sprintf("must be an IP address or a DNS name: %s", msg)))
		}
	}
	return errs
}
