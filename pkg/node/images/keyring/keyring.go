// Package keyring selects the registry credentials for an image from a pod's pull secrets and from the answers of
// credential provider plugins.
//
// Its invariant: a credential is returned only for images that match the host, port and path of its source, by the
// rules of k8s.io/kubernetes/pkg/credentialprovider.
package keyring

import (
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"maps"
	"net"
	"net/url"
	"path"
	"slices"
	"strings"

	"github.com/distribution/reference"
	corev1 "k8s.io/api/core/v1"

	"github.com/coracle-dev/coracle/pkg/node/runtime"
)

// maxMatches limits the credentials per image.
const maxMatches = 32

// Credential is a registry credential and its source.
type Credential struct {
	runtime.Auth
	// Secret is the secret that contains it, Account the service account for which a plugin returned it. If both are
	// zero, it is the node's credential, for all pods.
	Secret  Secret
	Account Account
}

// Everyones reports whether it is the node's credential.
func (c Credential) Everyones() bool { return c.Secret == Secret{} && c.Account == Account{} }

// Key identifies a credential by its source and content.
func (c Credential) Key() string {
	return strings.Join([]string{c.Secret.UID, c.Account.UID, hash(c.Auth)}, "\x00")
}

// Account identifies a service account.
type Account struct{ UID, Namespace, Name string }

// Secret identifies a secret, and a credential in it by its hash.
type Secret struct {
	UID, Namespace, Name string
	// Hash is the SHA-256 of the credential, in hexadecimal.
	Hash string
}

// Keyring contains a pod's credentials. The zero value is empty.
type Keyring struct {
	logins map[string][]Credential // by "host[:port][/path]"; the host may have wildcards
}

type login struct {
	Username, Password, Auth string
	RegistryToken            string `json:"registrytoken"`
}

// Add adds the credentials of a kubernetes.io/dockerconfigjson or kubernetes.io/dockercfg secret.
func (k *Keyring) Add(s *corev1.Secret) error {
	logins := map[string]login{}
	var err error
	switch s.Type {
	case corev1.SecretTypeDockerConfigJson:
		var c struct {
			Auths map[string]login `json:"auths"`
		}
		err = json.Unmarshal(s.Data[corev1.DockerConfigJsonKey], &c)
		logins = c.Auths
	case corev1.SecretTypeDockercfg:
		err = json.Unmarshal(s.Data[corev1.DockerConfigKey], &logins)
	}
	if err != nil {
		return fmt.Errorf("secret %s/%s: %w", s.Namespace, s.Name, err)
	}
	for _, registry := range slices.Sorted(maps.Keys(logins)) {
		where, ok := key(registry)
		l := logins[registry]
		if l.Auth != "" {
			raw, err := base64.StdEncoding.DecodeString(l.Auth)
			if err != nil { // some tools omit the padding
				raw, err = base64.RawStdEncoding.DecodeString(l.Auth)
			}
			user, password, whole := strings.Cut(string(raw), ":")
			if err != nil || !whole {
				ok = false
			} else {
				l.Username, l.Password = user, password
			}
		}
		if !ok {
			continue
		}
		auth := runtime.Auth{Username: l.Username, Password: l.Password, Token: l.RegistryToken}
		k.add(where, Credential{
			Auth: auth, Secret: Secret{UID: string(s.UID), Namespace: s.Namespace, Name: s.Name, Hash: hash(auth)},
		})
	}
	return nil
}

// AddLogins adds a plugin's credentials, by registry, for a service account; the zero Account means the node.
func (k *Keyring) AddLogins(logins map[string]runtime.Auth, account Account) {
	for _, registry := range slices.Sorted(maps.Keys(logins)) {
		if where, ok := key(registry); ok {
			k.add(where, Credential{Auth: logins[registry], Account: account})
		}
	}
}

func (k *Keyring) add(where string, c Credential) {
	if k.logins == nil {
		k.logins = map[string][]Credential{}
	}
	k.logins[where] = append(k.logins[where], c)
}

func hash(a runtime.Auth) string {
	data, err := json.Marshal(a)
	if err != nil {
		return ""
	}
	return Sum(string(data))
}

// Sum returns the SHA-256 of a text in hexadecimal.
func Sum(text string) string {
	sum := sha256.Sum256([]byte(text))
	return hex.EncodeToString(sum[:])
}

// key returns a credential's registry without the scheme and without the /v1/ or /v2/ that Docker writes.
func key(registry string) (string, bool) {
	if !strings.HasPrefix(registry, "https://") && !strings.HasPrefix(registry, "http://") {
		registry = "https://" + registry
	}
	u, err := url.Parse(registry)
	if err != nil || u.Host == "" {
		return "", false
	}
	where := u.Path
	if strings.HasPrefix(where, "/v1/") || strings.HasPrefix(where, "/v2/") {
		where = where[3:]
	}
	if where == "/" {
		where = ""
	}
	return u.Host + where, true
}

// dockerHub is Docker Hub's name in Docker's configuration.
const dockerHub = "index.docker.io"

// Lookup returns the credentials to try for an image, the most specific match first, at most maxMatches.
func (k *Keyring) Lookup(image string) []Credential {
	named, err := reference.ParseNormalizedNamed(image)
	if err != nil {
		return nil
	}
	repository := named.Name()
	var found []Credential
	for _, where := range slices.Backward(slices.Sorted(maps.Keys(k.logins))) {
		if Matches(where, repository) {
			found = append(found, k.logins[where]...)
		}
	}
	if len(found) == 0 && reference.Domain(named) == "docker.io" {
		found = k.logins[dockerHub]
	}
	return found[:min(len(found), maxMatches)]
}

// Matches reports whether a repository matches a key: wildcards within a label of the host, and equal ports.
func Matches(where, repository string) bool {
	glob, err1 := url.Parse("https://" + where)
	target, err2 := url.Parse("https://" + repository)
	if err1 != nil || err2 != nil {
		return false
	}
	globParts, globPort := split(glob.Host)
	parts, port := split(target.Host)
	if globPort != port || len(globParts) != len(parts) || !strings.HasPrefix(target.Path, glob.Path) {
		return false
	}
	for i := range parts {
		if ok, err := path.Match(globParts[i], parts[i]); !ok || err != nil {
			return false
		}
	}
	return true
}

func split(hostport string) (parts []string, port string) {
	host, port, err := net.SplitHostPort(hostport)
	if err != nil {
		host, port = hostport, ""
	}
	return strings.Split(host, "."), port
}
