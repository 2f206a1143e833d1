package certificates

import (
	"bytes"
	"crypto/ecdsa"
	"crypto/x509"
	"crypto/x509/pkix"
	"net"
	"net/url"
	"slices"
	"time"

	"gopkg.in/go-jose/go-jose.v2"
	"gopkg.in/go-jose/go-jose.v2/jwt"
)

// Leaf describes the certificate, and the token, of one Secret.
type Leaf struct {
	// Identity is the URI in the certificate's subject alternative names, and the token's subject.
	Identity string
	// Hosts are the DNS names and IP addresses of a server. Without any, the certificate is for clients only.
	Hosts []string
	// Life is the validity of the certificate and the token.
	Life time.Duration
	// Token adds a token to the Secret.
	Token bool
}

// Issue returns the content of a Secret with a new key.
func (a *Authority) Issue(l Leaf, now time.Time) (map[string][]byte, error) {
	identity, err := url.Parse(l.Identity)
	if err != nil {
		return nil, err
	}
	key, keyPEM, err := newKey()
	if err != nil {
		return nil, err
	}
	template := &x509.Certificate{
		Subject: pkix.Name{CommonName: identity.Path}, URIs: []*url.URL{identity}, KeyUsage: x509.KeyUsageDigitalSignature,
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth},
	}
	if len(l.Hosts) > 0 {
		template.ExtKeyUsage = append(template.ExtKeyUsage, x509.ExtKeyUsageServerAuth)
		template.DNSNames, template.IPAddresses = split(l.Hosts)
	}
	cert, err := sign(template, a.cert, key, a.key, now, l.Life)
	if err != nil {
		return nil, err
	}
	data := map[string][]byte{Certificate: cert, Key: keyPEM, Authorities: a.pem}
	if l.Token {
		token, err := a.newToken(l, now)
		if err != nil {
			return nil, err
		}
		data[Token] = []byte(token)
	}
	return data, nil
}

func split(hosts []string) (names []string, addresses []net.IP) {
	for _, h := range hosts {
		if ip := net.ParseIP(h); ip != nil {
			addresses = append(addresses, ip)
		} else {
			names = append(names, h)
		}
	}
	return names, addresses
}

func (a *Authority) newToken(l Leaf, now time.Time) (string, error) {
	signer, err := jose.NewSigner(jose.SigningKey{Algorithm: jose.ES256, Key: a.token},
		(&jose.SignerOptions{}).WithType("JWT"))
	if err != nil {
		return "", err
	}
	return jwt.Signed(signer).Claims(jwt.Claims{
		Subject:   l.Identity,
		NotBefore: jwt.NewNumericDate(now.Add(-skew)),
		Expiry:    jwt.NewNumericDate(now.Add(l.Life)),
	}).CompactSerialize()
}

// Due returns when to issue the content of a Secret again: at two thirds of its lifetime, or at once (the zero time) if
// it is not what Issue returns for this leaf, for example because a user has edited it.
func (a *Authority) Due(data map[string][]byte, l Leaf) time.Time {
	cert, err := parseCertificate(data[Certificate])
	if err != nil {
		return time.Time{}
	}
	key, err := parseKey(data[Key])
	if err != nil || !a.issued(cert, key, l) || !bytes.Equal(data[Authorities], a.pem) {
		return time.Time{}
	}
	if l.Token != (data[Token] != nil) || l.Token && !a.signed(string(data[Token]), cert, l) {
		return time.Time{}
	}
	return cert.NotBefore.Add(skew + l.Life*2/3)
}

// issued reports whether Issue would make such a certificate for a leaf.
func (a *Authority) issued(cert *x509.Certificate, key *ecdsa.PrivateKey, l Leaf) bool {
	names, addresses := split(l.Hosts)
	return belongs(cert, key) && cert.CheckSignatureFrom(a.cert) == nil &&
		cert.NotAfter.Sub(cert.NotBefore) == l.Life+skew &&
		len(cert.URIs) == 1 && cert.URIs[0].String() == l.Identity && slices.Equal(cert.DNSNames, names) &&
		slices.EqualFunc(cert.IPAddresses, addresses, net.IP.Equal)
}

// signed reports whether this authority signed the token for the leaf, and it expires together with the certificate.
func (a *Authority) signed(token string, cert *x509.Certificate, l Leaf) bool {
	parsed, err := jwt.ParseSigned(token)
	if err != nil {
		return false
	}
	var claims jwt.Claims
	return parsed.Claims(a.token.Public(), &claims) == nil && claims.Subject == l.Identity && claims.Expiry != nil &&
		claims.Expiry.Time().Equal(cert.NotAfter)
}
