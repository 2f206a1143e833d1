package encryption

import (
	"errors"
	"fmt"
	"slices"
	"time"

	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	"k8s.io/apiserver/pkg/apis/apiserver"
	apiserverv1 "k8s.io/apiserver/pkg/apis/apiserver/v1"
	"k8s.io/apiserver/pkg/apis/apiserver/validation"
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

// validate applies the limits and upstream's rules.
func validate(c *apiserver.EncryptionConfiguration) error {
	resources, keys, plugins := 0, 0, 0
	for i, r := range c.Resources {
		resources += len(r.Resources)
		if slices.Contains(r.Resources, "") {
			return fmt.Errorf("resources[%d]: \"\" names no resource", i)
		}
		for j, p := range r.Providers {
			if p.KMS != nil {
				plugins++
				if err := validatePlugin(p.KMS); err != nil {
					return fmt.Errorf("resources[%d].providers[%d].%w", i, j, err)
				}
			}
			for _, k := range slices.Concat(keysOf(p.AESCBC), keysOf(p.AESGCM), secretboxKeys(p.Secretbox)) {
				keys++
				if len(k.Name) > maxKeyName {
					return fmt.Errorf("resources[%d].providers[%d]: the name of a key has more than %d bytes", i, j, maxKeyName)
				}
			}
		}
	}
	if resources > maxResources || keys > maxKeys || plugins > maxPlugins {
		return fmt.Errorf("there are more than %d resources, %d keys or %d KMS providers", maxResources, maxKeys, maxPlugins)
	}
	const reload = true // each KMS provider has its own name
	if errs := validation.ValidateEncryptionConfiguration(c, reload); len(errs) > 0 {
		return fmt.Errorf("%s: %s", errs[0].Field, errs[0].Detail) // BadValue may contain secrets
	}
	return masked(c)
}

// validatePlugin refuses what upstream refuses without a feature gate, or would dereference without its defaults.
func validatePlugin(c *apiserver.KMSConfiguration) error {
	switch {
	case c.APIVersion != "v2":
		return fmt.Errorf("kms.apiVersion: %q is not supported, as in Kubernetes unless a feature gate says otherwise: use "+
			"a plugin for v2, and write it here", c.APIVersion)
	case len(c.Name) > maxKeyName:
		return fmt.Errorf("kms.name has more than %d bytes", maxKeyName)
	case c.Timeout == nil || c.Timeout.Duration <= 0 || c.Timeout.Duration > maxPluginTimeout:
		return fmt.Errorf("kms.timeout must be more than 0 and at most %s", maxPluginTimeout)
	}
	return nil
}

var anything = schema.GroupResource{Group: "*", Resource: "*"}

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
