"""Text in many scripts from Babel's data, and text of the kinds that tokenizers get wrong."""

import random

from babel import Locale
from tokenizers import normalizers

LOCALES = [
    "en", "de", "fr", "es", "pl", "cs", "tr", "vi", "ru", "uk", "el", "hy", "ka",
    "he", "ar", "fa", "ur", "hi", "bn", "ta", "te", "ml", "kn", "gu", "pa", "si",
    "th", "lo", "km", "my", "am", "ti", "zh", "zh_Hant", "ja", "ko", "mn", "chr", "yo",
    "ff_Adlm",
]  # fmt: skip

AWKWARD = [
    "",
    " ",
    "  two  spaces  ",
    "   leading",
    "trailing   ",
    "tab\tnewline\nboth\t\n",
    "\r\nwindows\r\n",
    "a\u00a0no-break\u202fspace\u3000ideographic",
    "zero\u200bwidth\u200djoiner\ufeffmark",
    "\x00\x01\x07control\x1b[0m\x7f\x85",
    "e\u0301 n\u0303 a\u0323\u0302 \u0301alone",
    "é ñ ậ",
    "ﬁ ﬂ ½ ² ① Ⅷ ㎏ ｆｕｌｌｗｉｄｔｈ ﷺ",
    "İstanbul ISPARTA ıi ß ẞ ŉ ǅ ΑΣ Σίσυφος",
    "👍 👍🏽 👩‍👩‍👧‍👦 🇩🇪 ❤️ ☕",
    "𝔘𝔫𝔦𝔠𝔬𝔡𝔢 𐍈 𠜎𠜱 𓀀",
    "他说：「你好，世界！」。",
    "שָׁלוֹם עֲלֵיכֶם",
    "اَلسَّلَامُ عَلَيْكُمْ ١٢٣",
    "क्षत्रिय ज्ञान",
    "กำลังทำงาน",
    "mixed עברית and العربية and 한국어",
    "1234567890 3.14159 1,000,000 -5e-10 0x1F",
    "don't I'll we've they'd HE'S it’s",
    "!!! ... ??? --- *** ((())) [[[]]] {{{}}}",
    "user@example.org https://example.org/a?b=c&d=e#f",
    "snake_case camelCase kebab-case PATH/to/file.py",
    "def f(x):\n    return x  # twice\n",
    "a" * 120,
    "ab " * 40,
    "�\ufffe\uffff",
    "[MASK]",
    "a [CLS] b [SEP] c [PAD][UNK]",
    "[mask] [ MASK ]",
    "<|endoftext|>",
    "end<|endoftext|>begin",
    "<s>text</s> <pad> <unk> <mask>",
    "<extra_id_0> and <extra_id_99><extra_id_100>",
    "a <note> b<note>c",
    "<0x41><0x0A>",
    "▁lower one eighth ▁ block",
    "Ġ Ċ ## ##ing",
    "# Heading\n\n- item\n  - nested\n",
]


def names(locale: str) -> list[str]:
    """What this language calls the days, months, languages and territories."""
    data = Locale.parse(locale)
    words = [
        *data.days["format"]["wide"].values(),
        *data.months["format"]["wide"].values(),
        *(data.languages[key] for key in sorted(data.languages)),
        *(data.territories[key] for key in sorted(data.territories)),
    ]
    return [word for word in words if word]


def make_strings() -> list[str]:
    """AWKWARD, then names alone, joined in all kinds of ways, and with characters mixed up."""
    rng = random.Random(0)
    words = {locale: names(locale) for locale in LOCALES}
    joints = [" ", " ", ", ", "  ", "\n", "\t", "", "-", "…", " 42 ", "\u00a0", "。", "؟ ", " 🙂 "]
    strings = list(AWKWARD)
    while len(strings) < 1000:
        some = [rng.choice(words[rng.choice(LOCALES)]) for _ in range(rng.randint(1, 3))]
        one = [rng.choice(words[LOCALES[len(strings) % len(LOCALES)]]) for _ in some]
        string = rng.choice(joints).join(rng.choice([one, one, some]))
        match rng.randint(0, 9):
            case 0:
                string = string.upper()
            case 1:
                string = normalizers.NFD().normalize_str(string)
            case 2:
                string = "".join(rng.sample(string, len(string)))
            case 3:
                string = rng.choice(AWKWARD) + string
        strings.append(string)
    return strings
