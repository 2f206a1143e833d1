package encryption

import (
	"bytes"
	"testing"

	"github.com/stretchr/testify/require"
)

// BenchmarkValues measures encrypting and decrypting a 3 KB value. "off" is without encryption; "others" stores a
// ConfigMap while only Secrets are encrypted.
func BenchmarkValues(b *testing.B) {
	value := append([]byte("k8s\x00"), bytes.Repeat([]byte("0123456789abcdef"), 190)...)
	for _, c := range []struct{ name, config, key string }{
		{"off", "", other},
		{"others", configured("secrets", keys("secretbox", "a"), identity), other},
		{"secretbox", configured("secrets", keys("secretbox", "a"), identity), one},
		{"aesgcm", configured("secrets", keys("aesgcm", "a"), identity), one},
		{"aescbc", configured("secrets", keys("aescbc", "a"), identity), one},
	} {
		b.Run(c.name, func(b *testing.B) {
			v := NewValues(kinds)
			if c.config != "" {
				s, err := load([]byte(c.config))
				require.NoError(b, err)
				v.use(s)
			}
			b.ReportAllocs()
			for b.Loop() {
				stored, done, err := v.Seal(c.key, value)
				if err != nil {
					b.Fatal(err)
				}
				done()
				if _, err := v.Open(c.key, stored); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}
