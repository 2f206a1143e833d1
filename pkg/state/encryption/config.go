package encryption

import (
	"encoding/base64"
	"errors"
	"fmt"
	"net/url"
	"slices"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	"k8s.io/apiserver/pkg/apis/apiserver"
	apiserverv1 "k8s.io/apiserver/pkg/apis/apiserver/v1"
)

// Limits of a configuration. Reading a damaged value tries all keys with its key name.
const (
	maxFileBytes = 1 << 20
	maxResources = 1024
	maxKeys      = 256
	maxKeyName   = 253 // bytes
	// maxPlugins is the maximum number of KMS plugins, maxPluginTimeout the maximum timeout of a call to one.
	maxPlugins       = 16
	maxPluginTimeout = time.Minute
)

// parse decodes an EncryptionConfiguration strictly: an unknown field is an error.
func parse(data []byte) (*apiserver.EncryptionConfiguration, error) {
	scheme := runtime.NewScheme()
	if err := errors.Join(apiserver.AddToScheme(scheme), apiserverv1.AddToScheme(scheme)); err != nil {
		return nil, err
	}
	obj, err := runtime.Decode(serializer.NewCodecFactory(scheme, serializer.EnableStrict).UniversalDecoder(), data)
	if err != nil {
		return nil, err
	}
	c, ok := obj.(*apiserver.EncryptionConfiguration)
	if !ok {
		return nil, fmt.Errorf("found a %s instead of an EncryptionConfiguration",
			obj.GetObjectKind().GroupVersionKind().Kind)
	}
	return c, validate(c)
}

// validate applies upstream's rules (k8s.io/apiserver/pkg/apis/apiserver/validation, whose imports are too large for
// the binary), and the limits.
func validate(c *apiserver.EncryptionConfiguration) error {
	if len(c.Resources) == 0 {
		return errors.New("resources: at least one entry is required")
	}
	resources, keys := 0, 0
	plugins := map[string]bool{}
	for i, r := range c.Resources {
		resources += len(r.Resources)
		for _, p := range r.Providers {
			for _, set := range [][]apiserver.Key{keysOf(p.AESCBC), keysOf(p.AESGCM), secretboxKeys(p.Secretbox)} {
				keys += len(set)
			}
			if p.KMS != nil && plugins[p.KMS.Name] {
				return fmt.Errorf("resources[%d]: there are two KMS providers with the name %q: list all resources of one in one "+
					"entry", i, p.KMS.Name)
			}
			if p.KMS != nil {
				plugins[p.KMS.Name] = true
			}
		}
		if len(plugins) > maxPlugins {
			return fmt.Errorf("there are more than %d KMS providers", maxPlugins)
		}
		if resources > maxResources || keys > maxKeys {
			return fmt.Errorf("there are more than %d resources or %d keys", maxResources, maxKeys)
		}
		if err := errors.Join(validateResources(r.Resources), validateProviders(r.Providers)); err != nil {
			return fmt.Errorf("resources[%d]: %w", i, err)
		}
	}
	return masked(c)
}

var anything = schema.GroupResource{Group: "*", Resource: "*"}

func validateResources(names []string) error {
	if len(names) == 0 {
		return errors.New("resources: at least one is required")
	}
	var all []schema.GroupResource
	for _, name := range names {
		r := schema.ParseGroupResource(name)
		switch {
		case strings.ToLower(name) != name:
			return fmt.Errorf("resources: %q must be lower case (has capital letters)", name)
		case name == "" || r.Resource == "":
			return fmt.Errorf("resources: %q names no resource", name)
		case name == "*":
			return errors.New(`resources: "*" is not possible: use "*." for the core group, or "*.*" for everything`)
		case slices.Contains([]string{"apiserveripinfo", "serviceipallocations", "servicenodeportallocations"}, name):
			return fmt.Errorf("resources: %q has no REST API, so it cannot be encrypted", name)
		case r.Group == "events.k8s.io":
			return errors.New(`resources: "events.k8s.io" is stored as the core group's: use "events"`)
		case r.Group == "extensions":
			return errors.New(`resources: the group "extensions" was removed from Kubernetes`)
		case r.Group == "*" && r.Resource != "*":
			return fmt.Errorf("resources: %q: a wildcard group needs a wildcard resource: *.*", name)
		}
		for _, other := range all {
			switch {
			case r == other:
				return fmt.Errorf("resources: %q is listed twice", name)
			case r == anything || other == anything || r.Group == other.Group && (r.Resource == "*" || other.Resource == "*"):
				return fmt.Errorf("resources: %q and %q overlap", name, written(other))
			}
		}
		all = append(all, r)
	}
	return nil
}

func validateProviders(providers []apiserver.ProviderConfiguration) error {
	if len(providers) == 0 {
		return errors.New("providers: at least one is required")
	}
	for i, p := range providers {
		if err := validateProvider(p); err != nil {
			return fmt.Errorf("providers[%d]: %w", i, err)
		}
	}
	return nil
}

func validateProvider(p apiserver.ProviderConfiguration) error {
	n := 0
	for _, given := range []bool{p.AESCBC != nil, p.AESGCM != nil, p.Secretbox != nil, p.Identity != nil, p.KMS != nil} {
		if given {
			n++
		}
	}
	switch {
	case n == 0:
		return errors.New("there is no provider: use one of kms, secretbox, aesgcm, aescbc, identity")
	case n > 1:
		return errors.New("there is more than one provider: make an entry of the list for each")
	case p.KMS != nil:
		return validatePlugin(p.KMS)
	case p.AESCBC != nil:
		return validateKeys(p.AESCBC.Keys, 16, 24, 32)
	case p.AESGCM != nil:
		return validateKeys(p.AESGCM.Keys, 16, 24, 32)
	case p.Secretbox != nil:
		return validateKeys(p.Secretbox.Keys, 32)
	}
	return nil
}

func validatePlugin(c *apiserver.KMSConfiguration) error {
	u, err := url.Parse(c.Endpoint)
	switch {
	case c.APIVersion != "v2":
		return fmt.Errorf("kms.apiVersion: %q is not supported, as in Kubernetes unless a feature gate says otherwise: use "+
			"a plugin for v2, and write it here", c.APIVersion)
	case c.Name == "" || len(c.Name) > maxKeyName || strings.Contains(c.Name, ":"):
		return fmt.Errorf("kms.name: 1 to %d bytes without a colon are required", maxKeyName)
	case c.CacheSize != nil:
		return errors.New("kms.cachesize belongs to KMS v1: remove it")
	case c.Timeout == nil || c.Timeout.Duration <= 0 || c.Timeout.Duration > maxPluginTimeout:
		return fmt.Errorf("kms.timeout must be more than 0 and at most %s", maxPluginTimeout)
	case c.Endpoint == "":
		return errors.New("kms.endpoint is required: the URL of the plugin's socket, such as unix:///run/kms.sock")
	case err != nil || u.Scheme != "unix":
		return fmt.Errorf("kms.endpoint: %q is not the URL of a Unix socket, such as unix:///run/kms.sock", c.Endpoint)
	}
	return nil
}

// validateKeys identifies keys by index: an error never contains a secret.
func validateKeys(keys []apiserver.Key, sizes ...int) error {
	if len(keys) == 0 {
		return errors.New("keys: at least one is required")
	}
	for i, k := range keys {
		secret, err := base64.StdEncoding.DecodeString(k.Secret)
		switch {
		case k.Name == "" || len(k.Name) > maxKeyName:
			return fmt.Errorf("keys[%d].name: 1 to %d bytes are required", i, maxKeyName)
		case k.Secret == "":
			return fmt.Errorf("keys[%d].secret is required", i)
		case err != nil:
			return fmt.Errorf("keys[%d].secret is not base64", i)
		case !slices.Contains(sizes, len(secret)):
			return fmt.Errorf("keys[%d].secret has %d bytes, not %s", i, len(secret), strings.Trim(fmt.Sprint(sizes), "[]"))
		}
	}
	return nil
}

// masked returns an error for resources after a wildcard that includes them, as upstream does.
func masked(c *apiserver.EncryptionConfiguration) error {
	seen := map[schema.GroupResource]bool{}
	for i, entry := range c.Resources {
		for _, name := range entry.Resources {
			r := schema.ParseGroupResource(name)
			for _, wide := range []schema.GroupResource{{Group: r.Group, Resource: "*"}, anything} {
				if seen[wide] {
					return fmt.Errorf("resources[%d]: %q has no effect after %q", i, name, written(wide))
				}
			}
			seen[r] = true
		}
	}
	return nil
}

// written returns a resource as in the file: "*." is the core group.
func written(r schema.GroupResource) string {
	if r.Group == "" && r.Resource == "*" {
		return "*."
	}
	return r.String()
}

func keysOf(a *apiserver.AESConfiguration) []apiserver.Key {
	if a == nil {
		return nil
	}
	return a.Keys
}

func secretboxKeys(s *apiserver.SecretboxConfiguration) []apiserver.Key {
	if s == nil {
		return nil
	}
	return s.Keys
}
